"""A shard of three real processes whose network is cut: see cuts.py."""

import os
import random
from pathlib import Path

import pytest

from tests.copies.cuts import CUTS, SKEWS_MS, run_cuts
from tests.seeds import seed
from tests.twins import native

native("duetime_raft")

# `make copies-cuts` has all of them.
CUTS_COUNT = int(os.environ.get("DUETIME_TEST_CUTS", "2"))


@pytest.mark.timeout(300 + 60 * CUTS_COUNT)
@pytest.mark.parametrize("skew_ms", [pytest.param(one, marks=[] if one > 0 else pytest.mark.proof) for one in SKEWS_MS])
async def test_copies_retract_no_answer_when_their_network_is_cut(tmp_path: Path, skew_ms: int) -> None:
    print(f"DUETIME_TEST_SEED={seed()}")
    run = await run_cuts(tmp_path, random.Random(seed()), CUTS_COUNT, skew_ms)
    assert run.faults == CUTS_COUNT
    assert run.leased
    assert run.compared_cancels
    took = sorted(run.takeovers_s)
    print(
        f"{run.faults} of {len(CUTS)} cuts, {run.disturbed} disturbed, {sum(run.ledger.sent)} records, "
        f"{run.compared_cancels} cancels; takeovers median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s; "
        f"{run.entries} equal entries"
    )
