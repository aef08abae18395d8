from pathlib import Path

import pytest

from bench import memory
from bench.memory import CachedHoles


def test_as_many_pages_are_taken_as_are_free_each_time_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 3 << 20)
    holes = CachedHoles(tmp_path, step_bytes=1 << 20)
    assert [holes.fill(), holes.fill()] == [3 << 20, 3 << 20]
    assert holes.read_bytes == 6 << 20
    assert (tmp_path / "holes").stat().st_blocks == 0


def test_free_memory_of_this_machine_is_known() -> None:
    assert 1 << 20 < memory.free_bytes() < 1 << 50
