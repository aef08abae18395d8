"""Java is found by JAVA_HOME, then by PATH, and its faults are reported in one line."""

from pathlib import Path

import pytest
from duetime_core.errors import StartupError
from duetime_spark.java import find_java


def make_java(folder: Path, says: str, code: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'.'\n{says}\n.\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin")


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS'])
def test_java_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    program = make_java(tmp_path, says)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")
    assert find_java() == program


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_java(tmp_path / "other", 'openjdk version "21.0.1"')
    program = make_java(tmp_path / "home", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", f"{other.parent}:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == program


def test_missing_java_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match="PATH has none: install Java 17 or newer") as caught:
        find_java()
    assert "\n" not in caught.value.text
    assert "openjdk-17-jre-headless" in caught.value.text


def test_java_home_without_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StartupError, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        find_java()


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ('java version "1.8.0_412"', 0, "is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11"),
        ("no such thing", 0, "does not print its version"),
        ('openjdk version "17.0.1"', 1, "does not run"),
    ],
)
def test_unsuitable_java_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, words: str
) -> None:
    monkeypatch.setenv("PATH", f"{make_java(tmp_path, says, code).parent}:/bin")
    with pytest.raises(StartupError, match=words):
        find_java()
