"""The release is had from one commit of this repository, or its absence is said."""

from pathlib import Path

import pytest

from tests.upgrade import release


def test_clone_without_the_releases_commit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "COMMIT", "0" * 40)
    with pytest.raises(release.NoRelease, match=r"commit 0000000 of release .* is not in this clone"):
        release.install(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fixtures_are_those_of_the_release_that_is_named() -> None:
    assert {path.name for path in release.FIXTURES.iterdir()} == {
        "clean.json",
        "clean.tar.xz",
        "contract.binpb",
        "killed.tar.xz",
        "postgresql.json",
        "postgresql.sql",
    }
