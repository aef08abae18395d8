"""The common part of all state machines of a shard's life: start, end, disk faults, crashes and clocks."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.store.life import Life


class LifeMachine(RuleBasedStateMachine):
    """Each rule is a step of the shard's life, which is checked after each crash."""

    life: Life

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.life = self.born(self.folder / "store", random.Random(seed))

    def born(self, root: Path, dice: random.Random) -> Life:
        """The life whose steps the rules are."""
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "life"):
            try:
                self.finish()
                self.life.step(self.life.cut_power)
            finally:
                self.life.close()
                shutil.rmtree(self.folder)

    def finish(self) -> None:
        """The last steps before the last power cut."""

    @rule()
    def checkpoint(self) -> None:
        self.life.step(self.life.checkpoint)

    @rule()
    def write_late(self) -> None:
        self.life.step(self.life.write_late)

    @rule(free_bytes=st.sampled_from([0, 8_192, 100_000, 400_000]))
    def fill_disk(self, free_bytes: int) -> None:
        self.life.step(self.life.fill_disk, free_bytes)

    @rule()
    def free_disk(self) -> None:
        self.life.step(self.life.free_disk)

    @rule()
    def restart(self) -> None:
        self.life.step(self.life.restart)

    @rule()
    def kill(self) -> None:
        self.life.step(self.life.kill)

    @rule()
    def cut_power(self) -> None:
        self.life.step(self.life.cut_power)

    @rule(operations=st.integers(1, 30), next_life=st.booleans())
    def cut_power_in(self, operations: int, next_life: bool) -> None:
        self.life.cut_power_in(operations, next_life=next_life)


class DelayedMachine(LifeMachine):
    """A shard whose commits take time. It may lose those under way."""

    mode = "delayed"

    @rule(all_of_them=st.booleans())
    def commit(self, all_of_them: bool) -> None:
        self.life.step(lambda: self.life.commit(all_of_them=all_of_them))

    @rule()
    def depose(self) -> None:
        self.life.step(self.life.depose)


def run_lives(machine: type[LifeMachine], steps: int) -> None:
    """Runs lives of `steps` steps; the profile sets the number of lives."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=steps,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
