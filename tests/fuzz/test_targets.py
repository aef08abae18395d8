"""Decoders of foreign bytes: the same inputs each time, and all that were findings once. `make fuzz` makes others."""

import os
from pathlib import Path

import pytest

from tests.fuzz import judging
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.judging import CORPUS, Finding, judge, judge_all, kept, peak_mb
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target, in_python

# Inputs of the cheapest target: half a minute for all together, in the gate a tenth of it. `make sanitize` has a
# separate number, as each takes longer there.
INPUTS = int(os.environ.get("FUZZ_INPUTS", "3000"))
MIB = 1024 * 1024


@pytest.mark.parametrize("inputs", [INPUTS, pytest.param(30_000, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_read_or_refused(name: str, inputs: int) -> None:
    target = TARGETS[name]
    assert judge_all(target, Mutator(target).inputs(inputs // target.cost)) == inputs // target.cost


@pytest.mark.parametrize(("name", "path"), kept(), ids=lambda value: value.name if isinstance(value, Path) else value)
def test_corpus_passes_its_target(name: str, path: Path) -> None:
    judge(TARGETS[name], path.read_bytes())


def test_every_kept_input_is_a_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()


def test_inputs_are_the_same_each_time_and_others_with_another_seed() -> None:
    target = TARGETS["one_record"]
    first, again, other = (list(Mutator(target, seed).inputs(500)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first[: len(target.seeds)] == other[: len(target.seeds)] == list(target.seeds)


def test_judge_finds_errors_and_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> None:
        if data:
            raise KeyError(data)

    def grows(data: bytes) -> None:
        # Allocate beyond the process's former peak.
        assert bytes(data) * ((peak_mb() + 64) * MIB)

    monkeypatch.setattr(judging, "GROWTH_MB_MAX", 16)
    judge(Target("fails", fails, []), b"")
    with pytest.raises(Finding, match="KeyError"):
        judge(Target("fails", fails, []), b"x")
    with pytest.raises(Finding, match="grew by"):
        judge(Target("grows", grows, []), b"x")


def test_a_twin_is_back_after_its_python_was_asked() -> None:
    from duetime_format import columns

    twin = columns._twin
    with pytest.raises(ZeroDivisionError):
        in_python(columns, "_twin", lambda: 1 // (columns._twin is not None))
    assert columns._twin is twin
