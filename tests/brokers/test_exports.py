"""Real brokers open exports: they read everything, deliver each pending message once, and not before its time.

`make broker-test`. A broker runs on the machine's clock, so these tests wait for the due times.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from duetime_store.offline.export import ExportResult, export_directory

from tests.brokers.broker import ROCKSDB_TIMERS, running
from tests.brokers.filled import PRODUCERS, SOON_MS, filled
from tests.brokers.served import Served, now_ms
from tests.cluster import half_used
from tests.cluster.half_used import LEVELS, Used, due, imported
from tests.format import golden55

# An engine in RocksDB compares times in whole seconds.
ROCKSDB_EARLY_MS = 2_000

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


def exported(used: Used, folder: Path) -> tuple[ExportResult, Path]:
    made = folder / "made"
    return export_directory(used.root, made, LEVELS, accept_damage=False, now_ms=now_ms()), made


def early_ms(settings: Mapping[str, object]) -> int:
    return ROCKSDB_EARLY_MS if settings == ROCKSDB_TIMERS else 0


async def check_return(made: Path, used: Used, until_ms: int, folder: Path) -> None:
    """The broker's directory, imported, has the messages that were not due, and one open transaction."""
    left = Counter({one: count for one, count in used.due.items() if one[2] > until_ms})
    root = imported(made, folder)
    assert due(root) == left
    async with half_used.running(folder, now_ms()) as shard:
        assert len(await shard.open()) == len(used.open) - 2


@pytest.mark.parametrize(
    ("version", "settings"),
    [("5.3.3", {}), ("5.5.1", {}), ("5.5.1", ROCKSDB_TIMERS)],
    ids=["5.3.3", "5.5.1", "5.5.1 RocksDB timers"],
)
async def test_a_broker_continues_an_export(jars: Path, settings: Mapping[str, object], tmp_path: Path) -> None:
    until_ms = now_ms() + SOON_MS
    used = await filled(tmp_path, now_ms())
    told, made = exported(used, tmp_path)
    with running(jars, made, {**told.settings, **settings}, tmp_path / "home") as (broker, client):
        served = Served(client, used, early_ms=early_ms(settings))
        served.check_groups()
        served.end_transactions(PRODUCERS)
        served.check_deliveries(until_ms)
        broker.stop()
    await check_return(made, used, until_ms, tmp_path / "back")


@pytest.mark.parametrize("version", ["5.5.1"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("b-timer-rocksdb", ROCKSDB_TIMERS),
        ("c-cq-rocksdb", {"storeType": "defaultRocksDB"}),
        ("d-trans-rocksdb", {"transRocksDBEnable": True, "transWriteOriginTransHalfEnable": False}),
    ],
)
async def test_a_broker_continues_its_own_directory(
    jars: Path, name: str, settings: Mapping[str, object], tmp_path: Path
) -> None:
    used = await half_used.used(name, tmp_path)
    until_ms = now_ms()
    told, made = exported(used, tmp_path)
    with running(jars, made, {**told.settings, **settings}, tmp_path / "home") as (broker, client):
        served = Served(client, used, early_ms=early_ms(settings))
        served.check_groups()
        served.end_transactions(f"{golden55.prefix(name)}tx")
        served.check_deliveries(until_ms)
        broker.stop()
    await check_return(made, used, until_ms, tmp_path / "back")
