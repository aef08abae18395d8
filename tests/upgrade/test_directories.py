"""This version's offline tools find the same in the release's directories as the release's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cluster import run_duetime


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_verify_calls_the_directory_sound(unpack: Callable[[str], Path], name: str) -> None:
    report = run_duetime("store", "verify", unpack(name) / "store-0", "--json")
    assert report.returncode == 0, report.stderr.decode()
    found = json.loads(report.stdout)
    assert found["damages"] == []
    assert found["records"] > 0


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_inspect_agrees_with_the_release(unpack: Callable[[str], Path], manifest: dict[str, Any], name: str) -> None:
    directory = unpack(name)
    was = manifest["inspect"] if name == "clean" else json.loads((directory / "inspect.json").read_text())
    report = run_duetime("store", "inspect", directory / "store-0", "--json")
    assert report.returncode == 0, report.stderr.decode()
    found = json.loads(report.stdout)
    assert {key: found.get(key) for key in was} == was
