"""The times planned by the recipe for recurring messages, in the nights in which a zone changes its offset."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from zoneinfo import ZoneInfo

import pytest

from tests.docs.test_howto import GUIDES, program
from tests.tidy.sources import PROJECT

NEXT_AFTER = Callable[[str, datetime], datetime]
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
# Berlin and New York repeat an hour after midnight, Lord Howe half an hour, and Santiago the hour before midnight.
NIGHTS = {
    "Europe/Berlin": ("2026-03-29 01:00", "2026-10-25 01:00"),
    "America/New_York": ("2026-03-08 07:00", "2026-11-01 06:00"),
    "Australia/Lord_Howe": ("2026-10-03 15:30", "2026-04-04 15:00"),
    "America/Santiago": ("2026-09-06 04:00", "2026-04-05 03:00"),
}


def load(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "argv", [name])
    module = ModuleType(name)
    exec(compile(code, name, "exec"), module.__dict__)
    return module


def of_guide(monkeypatch: pytest.MonkeyPatch, cron: str, zone: str) -> NEXT_AFTER:
    (page,) = (page for page in GUIDES if page.stem == "recurring")
    module = load("guide", program(page)["recurring.py"], monkeypatch)
    module.SCHEDULES["report"] = (cron, zone)
    return module.next_after  # type: ignore[no-any-return]


def of_example(monkeypatch: pytest.MonkeyPatch, cron: str, zone: str) -> NEXT_AFTER:
    module = load("example", (PROJECT / "examples" / "recurring.py").read_text(), monkeypatch)
    module.SCHEDULES["report"], module.ZONE = cron, ZoneInfo(zone)
    return module.next_after  # type: ignore[no-any-return]


@pytest.mark.parametrize("program_of", [of_guide, of_example])
@pytest.mark.parametrize("cron", ["30 1 * * *", "45 1 * * *", "30 2 * * *", "30 23 * * *", "*/10 * * * *"])
@pytest.mark.parametrize("zone", NIGHTS)
def test_planned_times_are_later_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch, program_of: Callable[..., NEXT_AFTER], cron: str, zone: str
) -> None:
    next_after = program_of(monkeypatch, cron, zone)
    for night in NIGHTS[zone]:
        change = datetime.fromisoformat(night).replace(tzinfo=UTC)
        before, after = ((change + side * MINUTE).astimezone(ZoneInfo(zone)).utcoffset() for side in (-1, 1))
        assert before != after
        moments = [change + at * MINUTE for at in range(-180, 180)]
        planned = [next_after("report", moment) for moment in moments]
        assert all(at > moment for moment, at in zip(moments, planned, strict=True))
        assert planned == sorted(planned)
        if cron.startswith("*"):
            assert planned == [moment + MINUTE * (10 - moment.minute % 10) for moment in moments]
        else:
            # Once on each of the days around.
            days = sorted({at.astimezone(ZoneInfo(zone)).date() for at in planned})
            assert len(days) == len(set(planned))
            assert days[-1] - days[0] <= DAY
