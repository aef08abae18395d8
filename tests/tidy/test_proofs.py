"""Each proof is a target of the Makefile, a row of CONTRIBUTING.md and a record that others can read."""

import json
import re
from pathlib import Path

import pytest

from tests import proofs
from tests.tidy.sources import PROJECT, content, files, name

MAKEFILE = content(PROJECT / "Makefile")
TABLE = set(re.findall(r"^\| `([\w-]+)` \|.*\| \d+ \|$", content(PROJECT / "CONTRIBUTING.md"), re.M))


def test_every_proof_is_a_target_and_is_described() -> None:
    recorded = set(re.findall(r"^([\w-]+):.*\n\t\$\(PROVE\) \$@ ", MAKEFILE, re.M))
    assert recorded == set(proofs.PROOFS) == TABLE


def test_folders_of_proofs_exist() -> None:
    folders = {folder for proof in proofs.PROOFS.values() for folder in proof.folders}
    assert [folder for folder in folders if not (PROJECT / folder).exists()] == []


def test_every_marked_test_is_run_by_a_proof() -> None:
    """A folder with marked tests is named by a target, or left to the one that runs the rest."""
    marked = {
        path.relative_to(PROJECT / "tests").parts[0] for path in files("tests") if "mark.proof" in content(path)
    } - {"rounds.py", "tidy"}
    rest = re.search(r"--ignore=tests/,([\w ]+)\)", MAKEFILE)
    assert rest
    ignored = set(rest[1].split())
    assert {folder for folder in ignored if f"tests/{folder}" not in MAKEFILE} == set()
    assert marked - ignored, "nothing is left to the rest"
    assert {folder for folder in ignored if not (PROJECT / "tests" / folder).is_dir()} == set()


def test_figures_are_summaries_or_the_last_lines() -> None:
    summary = "======== 2 passed, 1 skipped in 61.20s (0:01:01) ========"
    assert proofs.figures_of(["x", summary, ""]) == ["2 passed, 1 skipped"]
    assert proofs.figures_of(["first", *map(str, range(20))]) == [str(n) for n in range(12, 20)]


def test_a_run_is_recorded_with_its_seed_and_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proofs, "RECORD", tmp_path / "proofs.json")
    monkeypatch.setenv("SEED", "7")
    monkeypatch.setenv("PAIRS", "12")
    assert proofs.run("races", "echo seed $SEED $DUETIME_TEST_SEED; false") == 1
    assert proofs.run("races", "echo 12 pairs") == 0
    failed, passed = map(json.loads, (tmp_path / "proofs.json").read_text().splitlines())
    assert (failed["passed"], failed["figures"], failed["seed"]) == (False, ["seed 7 7"], 7)
    assert (passed["passed"], passed["figures"], passed["parameters"]) == (True, ["12 pairs"], {"PAIRS": "12"})
    proofs.show(as_json=False)
    shown = capfd.readouterr().out
    assert re.search(rf"^races +passed .* {passed['commit'][:8]}", shown, re.M)
    assert re.search(r"^kills +never run$", shown, re.M)


def test_the_results_of_other_proofs_are_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    monkeypatch.setattr(proofs, "RECORD", tmp_path / "proofs.json")
    source = tmp_path / "source"
    for path in (proofs.RECORD, source):
        path.touch()
    proofs.git("init", "--quiet")
    proofs.git("add", ".")
    proofs.git(*("-c", "user.name=A", "-c", "user.email=a@example.com"), "commit", "--quiet", "-m", "all")
    proofs.run("races", "echo 1 pair")
    proofs.run("lives", "echo 1 life")
    source.write_text("other")
    proofs.run("races", "echo 1 pair")
    assert [json.loads(line)["changed"] for line in proofs.RECORD.read_text().splitlines()] == [False, False, True]


def test_the_kept_record_can_be_read() -> None:
    results = proofs.last_results(content(proofs.RECORD)) if proofs.RECORD.exists() else {}
    assert set(results) <= set(proofs.PROOFS), name(proofs.RECORD)
