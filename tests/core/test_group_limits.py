"""The limit of a topic: an operator's, completed by a declared one."""

import pytest
from duetime.v1.consumer_pb2 import GroupLimits, GroupPause
from duetime_core.rpc import group_limits
from duetime_format import rates


def limits_of(*rows: tuple[str, str, int, bool]) -> GroupLimits:
    """Limits by topic, rate, number by key, and whether they are declared."""
    found = GroupLimits(set_at_ms=1)
    for topic, rate, per_key, declared in rows:
        limit = found.limits.add(topic=topic, per_key=per_key, declared=declared)
        if rate:
            rates.fill(limit.rate, rate)
    return found


DECLARED = ("mail", "50/s", 1, True)


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ([DECLARED], {"mail": "50/s, 1 per key"}),
        ([DECLARED, ("", "10/s", 0, False)], {"mail": "10/s, 1 per key", "": "10/s"}),
        ([DECLARED, ("", "10/s", 0, False), ("mail", "", 3, False)], {"mail": "50/s, 3 per key", "": "10/s"}),
        ([DECLARED, ("orders", "10/s", 2, False)], {"mail": "50/s, 1 per key", "orders": "10/s, 2 per key"}),
        ([("mail", "", 1, True), ("", "", 5, False)], {"mail": "5 per key", "": "5 per key"}),
    ],
)
def test_limit_of_an_operator_takes_precedence(rows: list[tuple[str, str, int, bool]], texts: dict[str, str]) -> None:
    found = limits_of(*rows)
    assert {topic: rates.limit_text(one) for topic, one in group_limits.effective(found).items()} == texts
    assert group_limits.parse(group_limits.render(found)) == found


def test_pause_stays_with_other_limits() -> None:
    pause = GroupPause(since_ms=5, until_ms=9)
    found = group_limits.paused(limits_of(DECLARED), pause, now_ms=7)
    assert (found.set_at_ms, group_limits.pause_of(found)) == (7, pause)
    assert group_limits.paused(found, pause, now_ms=8) is found
    limited = group_limits.replaced(found, limits_of(("", "1/s", 0, False)).limits[0], now_ms=8)
    assert group_limits.parse(group_limits.render(limited)).pause == pause
    assert group_limits.pause_of(group_limits.paused(limited, None, now_ms=9)) is None
