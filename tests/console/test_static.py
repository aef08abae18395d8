"""Files that browsers load with the pages."""

import re

from duetime_console.rendering import STATIC

from tests.tidy.sources import PROJECT

SCRIPT_BYTES_MAX = 300_000
ASSET = re.compile(r"asset\('([^']+)'\)")


def test_all_script_is_small() -> None:
    assert 0 < sum(path.stat().st_size for path in STATIC.rglob("*.js")) < SCRIPT_BYTES_MAX


def test_files_are_those_that_pages_load() -> None:
    """And licences of others' files, which nobody loads."""
    templates = (PROJECT / "console/duetime_console/templates").glob("*.html")
    loaded = {name for page in templates for name in ASSET.findall(page.read_text())}
    licences = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.LICENSE")}
    assert {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()} == loaded | licences


def test_files_of_others_have_their_licences() -> None:
    names = {path.name.split(".")[0] for path in (STATIC / "vendor").iterdir()}
    assert names == {path.name.removesuffix(".LICENSE") for path in (STATIC / "vendor").glob("*.LICENSE")}
