"""Readers of server-sent events."""

import pytest
from duetime_console.overview.events import BEHIND_MAX, READERS_MAX, Events
from duetime_core.errors import Overloaded


async def test_one_host_leaves_pages_that_watch_to_others() -> None:
    events = Events()
    for _ in range(READERS_MAX // 2):
        events.stream("greedy")
    with pytest.raises(
        Overloaded, match="100 live pages are open; the limit is 200; 100 belong to greedy; its limit is 100"
    ):
        events.stream("greedy")
    for _ in range(READERS_MAX // 10):
        events.stream("other")
    for _ in range(BEHIND_MAX + 1):
        events.publish("figures", "1")
    assert (events.reader_count, events.dropped_count) == (0, 120)
    events.stream("greedy")
