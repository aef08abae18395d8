"""Decision records have one form, and their numbers no gaps."""

import re
from pathlib import Path

import pytest

from tests.tidy.sources import PROJECT, content

RECORDS = sorted((PROJECT / "docs" / "adr").glob("*.md"))
HEADINGS = ["Context", "Decision", "Consequences", "Alternatives"]
STATUS = re.compile(r"(proposed|accepted|rejected|[Ss]uperseded by \d+)(\. Superseded in part by (\d+)(: .+)?)?")


def test_every_number_is_there_once() -> None:
    numbers = [int(path.name[:4]) for path in RECORDS]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == set(range(1, max(numbers) + 1))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name[:4])
def test_record_has_the_form_of_all(path: Path) -> None:
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)
    lines = content(path).splitlines()
    assert re.fullmatch(rf"# {int(path.name[:4])}\. \S.*", lines[0])
    assert (lines[1], lines[2][:8], lines[3]) == ("", "Status: ", "")
    status = STATUS.fullmatch(lines[2].removeprefix("Status: "))
    assert status
    successor = status[3] or (re.findall(r"\d+", status[1]) or [None])[0]
    assert successor is None or int(successor) in {int(other.name[:4]) for other in RECORDS}
    assert [found[1] for line in lines if (found := re.match(r"\*\*(\w+)\.\*\*", line))] == HEADINGS
    assert [line for line in lines[1:] if line.startswith("#")] == []
