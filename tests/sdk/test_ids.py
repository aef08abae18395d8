"""Message ids: shape, uniqueness."""

import re
from concurrent.futures import ThreadPoolExecutor

from duetime.client.ids import new_id


def test_an_id_is_32_upper_case_hex_digits() -> None:
    assert re.fullmatch("[0-9A-F]{32}", new_id())


def test_ids_of_many_threads_are_unique() -> None:
    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(lambda _: [new_id() for _ in range(5_000)], range(8)))
    assert len({id_ for batch in batches for id_ in batch}) == 40_000
