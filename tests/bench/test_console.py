"""The console's pages are asked for as the benchmark says, and set against each other."""

import io
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console

from bench.console import PAGES, PICTURES, Shown, Times, serve, showing, table_of


@pytest.mark.proof
async def test_each_page_has_a_time_with_all_messages_pending(tmp_path: Path) -> None:
    with showing(tmp_path, 3) as shown:
        await shown.fill()
        times: Times = defaultdict(list)
        for turn in range(2):
            serve(shown, turn, times)
    assert list(times) == [*PAGES, *PICTURES]
    assert all(len(found) == 2 and min(found) > 0 for found in times.values())


def test_ratio_is_that_of_the_medians(tmp_path: Path) -> None:
    shown = [Shown(count, None, "") for count in (10, 1_000)]  # type: ignore[arg-type]
    written = Console(file=io.StringIO(), width=130)
    written.print(table_of(shown, [{"/": [1.0, 2.0, 9.0]}, {"/": [3.0, 4.0, 9.0]}]))
    assert isinstance(written.file, io.StringIO)
    text = written.file.getvalue()
    assert "1,000: median" in text
    assert "2.00" in text
