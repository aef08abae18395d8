"""Subjects of commits keep the rule, in a full clone and in a shallow one."""

import subprocess
from pathlib import Path

import pytest

from deploy import commits
from tests.tidy.sources import PROJECT

HOOK = PROJECT / ".githooks" / "commit-msg"
GOOD = [
    "metadata: bypass the ORM on hot reads",
    "store, retry: release leases on shutdown",
    "core: process one batch at a time",
    "docs: mention the limit of retries",
    "fixup! store: seal the last segment",
]
BAD = {
    "store: " + "x" * 54: "61 characters",
    "Fix the store": "component: imperative",
    "store:seal the last segment": "component: imperative",
    "tests: wording": "component: imperative",
    "tests: wording of errors": "wording is not an imperative",
    "store: sealed the last segment": "sealed is not an imperative",
    "store: seals the last segment": "seals is not an imperative",
    "docs: what a turn less of the loop gains": "what is not an imperative",
    "tests: two that raced": "two is not an imperative",
}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    run = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize("subject", GOOD)
def test_good_subject_is_accepted(subject: str) -> None:
    assert commits.fault(subject) is None


@pytest.mark.parametrize("subject", BAD)
def test_bad_subject_is_rejected_with_the_reason(subject: str) -> None:
    assert BAD[subject] in (commits.fault(subject) or "")


def test_hook_reads_the_first_line_that_is_no_comment(tmp_path: Path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("\n# Lines with # are left out.\nstore: sealed the last segment\n\nThe reason.\n")
    run = subprocess.run([HOOK, message], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (run.returncode, "sealed is not an imperative" in run.stderr) == (1, True)
    message.write_text(
        "store: seal the last segment\n\nThe body is longer than sixty characters and has no component.\n"
    )
    assert subprocess.run([HOOK, message], cwd=PROJECT, check=False).returncode == 0


def test_new_commits_are_found_in_full_shallow_and_other_histories(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    for subject in ("Old style.", "store: seal it", "store: keep it"):
        git(origin, "commit", "-q", "--allow-empty", "-m", subject)
    first = git(origin, "rev-parse", "HEAD~2")
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), "shallow")
    (tmp_path / "none").mkdir()

    def subjects(folder: str, first: str = first) -> list[str]:
        return [line.partition(" ")[2] for line in commits.new_subjects(first, tmp_path / folder)]

    assert subjects("origin") == ["store: keep it", "store: seal it"]
    assert subjects("shallow") == ["store: keep it"]
    assert subjects("origin", "0" * 40) == []
    assert subjects("none") == []
