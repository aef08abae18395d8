"""The programs of the how-to guides: their files as they stand, and their tests, by the pytest plugin.

A comment above a block names its file: `<!-- file: orders/models.py -->`.
"""

import re
from pathlib import Path

import pytest

from tests.core.test_pytest_plugin import run_pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = [DOCS / "tasks.md", *sorted((DOCS / "howto").glob("*.md"))]
_MARK = "<!-- file: "
_FILE = re.compile(r"^<!-- file: (?P<name>[\w/]+\.py) -->\n```python\n(?P<code>.*?)^```$", re.M | re.S)


def program(page: Path) -> dict[str, str]:
    """The code of a page by its file."""
    return {block["name"]: block["code"] for block in _FILE.finditer(page.read_text())}


# The other programs are proofs.
GATE = {"fastapi", "testing"}
PAGES = [page for page in GUIDES if _MARK in page.read_text()]


def test_every_marked_block_is_a_file() -> None:
    assert {"celery", "django", "fastapi", "tasks", "testing"} <= {page.stem for page in PAGES}
    for page in PAGES:
        assert len(program(page)) == page.read_text().count(_MARK), page.name


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[] if page.stem in GATE else [pytest.mark.proof]) for page in PAGES]
)
def test_program_passes_its_tests(page: Path, tmp_path: Path) -> None:
    files = program(page)
    for name, code in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    count = sum(code.count("\ndef test_") for code in files.values())
    assert count
    done = run_pytest(tmp_path, "-W", "error", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout
