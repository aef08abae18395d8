"""Brings a broker's offsets, topics, groups and received messages into the files of a shard.

A broker may keep them in RocksDB, and POP's received messages in the log (duetime_shard.brokers.config, pops). An
import writes them as RocketMQ's JSON files into the copy; a store that opens a broker's directory itself writes them
beside the broker's own, and notes in duetimeStore.json that it has.
"""

from pathlib import Path

import structlog
from duetime_core.errors import StartupError
from duetime_format.errors import DamagedBytes
from duetime_shard.brokers import config as brokerconfig
from duetime_shard.brokers import engines, pops
from duetime_shard.brokers import halves as rocksdbhalves
from duetime_shard.brokers.engines import Loss
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles

from duetime_store.files import configs
from duetime_store.files.disk import Disk

log = structlog.get_logger()


def adopt(disk: Disk, source: Path, target: Path) -> list[Loss]:
    """Writes the state of the broker's directory `source` into the files of `target`. Returns the losses; the rest is
    durable on return. Raises: EngineMissing, OSError."""
    found = brokerconfig.read(source)
    for name, content in ((configs.TOPICS, found.topics), (configs.GROUPS, found.groups)):
        if content is not None:
            _write(disk, target / "config", name, content)
    losses, offsets = list(found.losses), found.offsets
    if offsets is not None and source != target:
        lite = configs.table_of(offsets, brokerconfig.LITE_TABLE)
        offsets = {name: value for name, value in offsets.items() if name != brokerconfig.LITE_TABLE}
        if lite:
            _write(disk, target / "config", configs.LITE_OFFSETS, {brokerconfig.LITE_TABLE: lite})
    if offsets is None:
        loaded = configs.load(source / "config", configs.CONSUMER_OFFSETS)
        is_shard = loaded.value is None and (source / "config" / configs.STORE).exists()
        if loaded.is_ours or is_shard or {configs.POPS, configs.CHECKS} & set(loaded.value or ()):
            return losses
        offsets = loaded.value or {}
    try:
        received = pops.outstanding(source, offsets)
    except DamagedBytes as error:
        losses.append(Loss("pop", error.text))
        received = []
    checks = _checks(source)
    if received or checks or found.offsets is not None:
        table = configs.table_of(offsets, brokerconfig.OFFSET_TABLE)
        entries = {brokerconfig.OFFSET_TABLE: table, configs.POPS: [pop.to_dict() for pop in received]}
        entries |= {configs.CHECKS: {str(position): count for position, count in checks.items()}} if checks else {}
        _write(disk, target / "config", configs.CONSUMER_OFFSETS, {**offsets, **entries})
    return losses


def _checks(source: Path) -> dict[int, int]:
    """Checks of transactions; none if they can't be read, which `verify` reports as damage."""
    try:
        return rocksdbhalves.counted_checks(source)
    except DamagedBytes as error:
        log.warning("checks of transactions can't be read, and begin at 0", fault=error.text)
        return {}


def _write(disk: Disk, config: Path, name: str, content: dict[str, object]) -> None:
    """Replaces a file, without our CRC: a broker's content is taken over at the start."""
    disk.make_directory(config)
    temporary = config / f"{name}.tmp"
    disk.write_file(temporary, configs.render(content).encode(), durable=True)
    disk.replace(temporary, config / name)
    disk.sync_directory(config)


def adopt_own(disk: Disk, root: Path) -> None:
    """As `adopt`, for a broker's directory opened by a store: once after each time that a broker has served it.

    Raises: StartupError: a broker's state can't be read, or is not understood.
    """
    now = engines.fingerprint(root)
    if now and now == engines.known_fingerprint(root):
        return
    is_first = not (root / "config" / configs.STORE).exists() and bool(LogFiles(LocalFiles(root)).files)
    # Nothing is written before state that is not understood is refused.
    accepted = frozenset(configs.table_of(configs.read(root / "config", configs.ACCEPTED), "kinds"))
    losses = engines.refused(engines.survey(root).losses, accepted) if is_first or now else []
    losses = losses or adopt(disk, root, root)
    if losses:
        listed = "; ".join(map(str, losses))
        raise StartupError(
            f"state of the broker in {root} can't be read: {listed}. `duetime store import --accept-loss` copies the "
            "directory without it"
        )
    if now:
        known = configs.read(root / "config", configs.STORE) or {}
        configs.write(disk, root / "config", configs.STORE, {**known, engines.ENGINES_KEY: now})
        log.info("broker's offsets, topics and groups taken over", engines=brokerconfig.engines(root))
