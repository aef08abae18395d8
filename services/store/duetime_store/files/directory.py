"""The store directory: its lock, the end of the last process, and the level tables of its data."""

import fcntl
import os
from pathlib import Path
from typing import Any

from duetime_core.errors import StartupError
from duetime_shard.brokers.timers import HANDOVER, Handover
from duetime_shard.history import LevelHistory

from duetime_store.files import configs
from duetime_store.files.disk import FILE_MODE, Disk

_PORT, _PORT_MAX = "advertisedPort", 65_535


class DirectoryInUse(StartupError):
    """Another process holds the directory."""


class StoreDirectory:
    """A shard's directory, held exclusively from construction to `close`."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """
        Raises:
            DirectoryInUse: another process holds it.
            StartupError: it can't be made or written.
        """
        self.root = root
        self.disk = disk or Disk()
        try:
            made = [folder for folder in (root, *root.parents) if not folder.exists()]
            self.disk.make_directory(root)
            for folder in made:
                self.disk.sync_directory(folder.parent)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StartupError(f"can't write to data directory {root}: {error.strerror}") from error
        try:
            # RocketMQ's broker takes a record lock; that alone does not keep two stores of one process apart.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(self._lock)
            raise DirectoryInUse(f"data directory {root} is in use by another process") from error
        os.pwrite(self._lock, b"lock", 0)

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def queues(self) -> Path:
        return self.root / "consumequeue"

    @property
    def timers(self) -> Path:
        """The orders of timer lanes: ours, derived."""
        return self.root / "timers"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def was_aborted(self) -> bool:
        """Whether the last process that served this directory did not stop cleanly."""
        return (self.root / "abort").exists()

    def mark_serving(self) -> None:
        self.disk.close(self.disk.open(self.root / "abort"))
        self.disk.sync_directory(self.root)

    def mark_stopped(self) -> None:
        configs.make_durable(self.disk, self.config, configs.DELAY_OFFSETS)
        self.disk.unlink(self.root / "abort")
        self.disk.sync_directory(self.root)

    def close(self) -> None:
        os.close(self._lock)


def advertised_port(config: Path) -> int:
    """The port in records so far; 0: unknown."""
    port = (configs.read(config, configs.STORE) or {}).get(_PORT)
    return port if isinstance(port, int) and 0 < port <= _PORT_MAX else 0


def save_advertised_port(port: int, disk: Disk, config: Path) -> None:
    """Saves it in duetimeStore.json: message ids contain it, and must still do so after a start on another port."""
    if port != advertised_port(config):
        configs.write(disk, config, configs.STORE, {**(configs.read(config, configs.STORE) or {}), _PORT: port})


def save_handover(handover: Handover, disk: Disk, config: Path) -> None:
    """Records in duetimeStore.json that this store has taken over a broker's timers, if there were any; keeps its other
    fields."""
    known = configs.read(config, configs.STORE) or {}
    configs.write(disk, config, configs.STORE, {**known, HANDOVER: handover.to_dict()})


def save_history(history: LevelHistory, disk: Disk, config: Path, shard: int) -> None:
    """Writes the level tables into duetimeStore.json; keeps its other fields."""
    entries: list[dict[str, Any]] = [
        {"fromPosition": since.position, "fromMs": since.at_ms, "delayLevels": str(since.levels)}
        for since in history.since
    ]
    known = configs.read(config, configs.STORE) or {}
    configs.write(disk, config, configs.STORE, {**known, "shard": shard, "levels": entries})
