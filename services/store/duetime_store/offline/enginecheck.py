"""Checks the engines in which a broker keeps state beside its files: each is read, and each loss is listed.

A RocksDB whose content is also in the log is only reported as damaged; one with offsets, topics, groups or messages
received by POP is a loss.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from duetime_format.errors import DamagedBytes
from duetime_shard import configs
from duetime_shard.brokers import config as brokerconfig
from duetime_shard.brokers import engines, pops, rocks
from duetime_shard.brokers import queues as rocksqueues
from duetime_shard.brokers.engines import Loss
from duetime_shard.brokers.queues import RocksQueue
from duetime_shard.queues import QueueImage
from duetime_shard.shard import LMQ_PREFIX, DirectoryState

from duetime_store.offline.report import VerifyReport


class EngineCheck:
    """Reads the engines of a directory, unless a store has taken them over."""

    def __init__(self, state: DirectoryState, report: VerifyReport) -> None:
        self._state = state
        self._report = report
        # Queues of lite topics in RocksDB, while `queues` is open.
        self.lite_queues: list[RocksQueue] = []
        # DueTime's own directories have no other state than its files.
        self._is_ours = configs.load_from(state.files, configs.STORE).value is not None

    def run(self) -> None:
        """Raises: EngineMissing."""
        root, report = self._state.root, self._report
        if engines.is_taken_over(root):
            return
        config = brokerconfig.read(root)
        report.notes += config.notes
        found = engines.survey(root)
        for name, text in found.damages:
            report.add(name, 0, text)
        if self._is_ours:
            return
        known = configs.read(root / "config", configs.CONSUMER_OFFSETS)
        losses = [*found.losses, *config.losses]
        try:
            pops.outstanding(root, config.offsets or known or {})
        except DamagedBytes as error:
            losses.append(Loss("pop", error.text))
        report.losses += dict.fromkeys(losses)

    @contextmanager
    def queues(self) -> Iterator[list[DirectoryState]]:
        """The state with the queues of each engine: of its files, and of each RocksDB with queues."""
        with ExitStack() as stack:
            found = []
            for name in () if self._is_ours else engines.QUEUE_FOLDERS:
                if rocks.is_rocks(self._state.root / name):
                    try:
                        database = stack.enter_context(rocks.opened(self._state.root, name))
                        all_ = list(rocksqueues.queues(database, name))
                    except DamagedBytes:
                        continue  # reported by `run`
                    self.lite_queues += [one for one in all_ if one.topic.startswith(LMQ_PREFIX)]
                    own = {(one.topic, one.queue): QueueImage(one) for one in all_ if one not in self.lite_queues}
                    found.append(replace(self._state, queues=own))
            has_rocks = any(rocks.is_rocks(self._state.root / name) for name in engines.QUEUE_FOLDERS)
            if self._state.queues or self._is_ours or not has_rocks:
                found.insert(0, self._state)
            yield found
