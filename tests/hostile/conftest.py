"""Clusters for the adversary."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.rig import Rig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Starts a cluster as `Rig` is made; at the end no process of it has ended by itself."""
    with ExitStack() as ends:
        rigs: list[Rig] = []

        def make(*arguments: Any, **keywords: Any) -> Rig:
            rigs.append(ends.enter_context(Rig(tmp_path / f"rig-{len(rigs)}", *arguments, **keywords)))
            return rigs[-1]

        yield make
        dead = [words for rig in rigs for words in rig.dead()]
        assert dead == []
