"""Sums by minute against plain Python, by the twin and without it."""

from collections import defaultdict

import numpy as np
import pytest
from duetime_spark.tables import pending_minutes

from tests.twins import compiled

NEVER = np.iinfo(np.int64).max


@pytest.fixture(params=["twin", "numpy"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled("duetime_spark.tables._minutes") if request.param == "twin" else None
    monkeypatch.setattr(pending_minutes, "_twin", module)


@pytest.mark.usefixtures("_way")
# The longest has more cells than are kept.
@pytest.mark.parametrize("span_ms", [1, 3_600_000, 1 << 45])
@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_a_loop(span_ms: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels, codes = rng.integers(0, 5, 500, dtype=np.int32), rng.integers(-1, 4, 500, dtype=np.int32)
    sizes, dues = rng.integers(0, 1_000, 500), 1_700_000_000_000 + rng.integers(0, span_ms, 500)
    moment_ms = int(np.median(dues))
    expected: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0, 0, NEVER, 0, 0, NEVER])
    for level, code, size, due in zip(*map(np.ndarray.tolist, (levels, codes, sizes, dues)), strict=True):
        row = expected[level, code, due // 60_000]
        row[0] += 1
        row[1] += size
        row[2] = min(row[2], due)
        if due <= moment_ms:
            row[3] += 1
            row[4] += size
        else:
            row[5] = min(row[5], due)
    found = pending_minutes.summed(levels, codes, sizes, dues, moment_ms)
    columns = (found.count, found.bytes, found.oldest, found.overdue_count, found.overdue_bytes, found.next)
    keys = zip(found.levels.tolist(), found.codes.tolist(), found.minutes.tolist(), strict=True)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert dict(zip(keys, map(list, rows), strict=True)) == expected
