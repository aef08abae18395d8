"""The programs of `examples/`, run as their users run them, with the delays that they have by default."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.docs.programs import cluster_of_today, python, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES_MIN, LINES_MAX = 40, 120


@dataclass(frozen=True)
class Case:
    # Lines in any order: handlers run at the same time.
    prints: list[str]
    # Once a line with this text is there, the clock moves to the next due moment.
    leaps: list[str] = field(default_factory=list)
    # `{minute}`: that in half an hour.
    arguments: tuple[str, ...] = ()


CASES = {
    "payment_timeout": Case(
        [
            "order 1: placed, pay within 30m",
            "order 2: placed, pay within 30m",
            "order 3: placed, pay within 30m",
            "order 2: paid, its timeout is cancelled",
            "order 1: not paid, cancelled",
            "order 3: not paid, cancelled",
            "order 3: the payment came too late",
        ],
        ["order 2: paid"],
    ),
    "reminders": Case(
        [
            "Cy's reminder: cancelled",
            "Ann is reminded in 1 days",
            "Ben is reminded in 4 days",
            "Dear Ann, you have an appointment tomorrow.",
            "Dear Ben, you have an appointment tomorrow.",
        ],
        ["Ben is reminded", "Dear Ann"],
    ),
    "webhooks": Case(
        [
            "shaky: attempt 1: 503",
            "shaky: attempt 2: 503",
            "shaky: attempt 3: 200",
            "gone: attempt 1: 410",
            *(f"down: attempt {number}: 500" for number in (1, 2, 3, 4)),
            "dead: gone: Reject: the receiver says 410",
            "dead: down: Retry: the receiver says 500",
        ],
    ),
    "outbox_orders": Case(
        [
            "ordered: tea",
            "rolled back, with its message: a unicorn, out of stock",
            "ordered: sugar",
            "the relay sent 2 messages",
            "not paid, cancelled: tea",
            "not paid, cancelled: sugar",
        ],
        ["the relay sent"],
    ),
    "debounce": Case(
        [
            "report, revision 1: index planned",
            "report, revision 2: index put off",
            "report, revision 3: index put off",
            "letter, revision 1: index planned",
            "report, revision 4: index put off",
            "indexing report, revision 4",
            "indexing letter, revision 1",
        ],
        ["report, revision 4"],
    ),
    "recurring": Case(
        [
            "report: planned",
            "report: already planned",
            "report: run 1",
            "report: run 2",
            "report: run 3",
            "report: cancelled",
        ],
        ["report: already planned", "report: run 1", "report: run 2"],
        ("{minute} * * * *",),
    ),
    "jobs": Case(
        [
            "mail to ann@example.com",
            "cat.png: attempt 1 fails",
            "cat.png: attempt 2 fails",
            "cat.png: attempt 3 works",
            "account 42 is closed",
        ],
    ),
}


def test_every_program_has_a_case_and_is_small() -> None:
    programs = {path.stem: path.read_text().count("\n") for path in EXAMPLES.glob("*.py")}
    assert set(programs) == set(CASES)
    assert [name for name, count in programs.items() if not LINES_MIN <= count <= LINES_MAX] == []
    readme = (EXAMPLES / "README.md").read_text()
    assert [name for name in programs if f"[{name}.py]({name}.py)" not in readme] == []


# Its retries take longest.
PROOFS = {"webhooks"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] if name in PROOFS else []) for name in CASES]
)
def test_program_works_as_documented(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    minute = (datetime.now(UTC) + timedelta(minutes=30)).minute
    command = python(EXAMPLES / f"{name}.py", *(each.format(minute=minute) for each in case.arguments))
    with cluster_of_today() as cluster, running(command, cluster, tmp_path) as program:
        for text in case.leaps:
            program.wait_for(text)
            program.leap()
        program.run_to_its_end()
        output = "\n".join(program.printed)
        # Threads print at the same time: a line's end may come after another one's text.
        for line in sorted(case.prints, key=len, reverse=True):
            assert line in output, (line, program.printed)
            output = output.replace(line, "", 1)
        assert output.strip() == "", program.printed
