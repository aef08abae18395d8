"""State that a broker keeps in RocksDB or for POP: an import takes it over, and so does a store on its directory."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2
from duetime_core.errors import StartupError
from duetime_core.testing import FakeClock
from duetime_format.lanes import is_timer_lane
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import decode_properties
from duetime_shard import configs
from duetime_shard.brokers import config as brokerconfig
from duetime_shard.brokers import queues as rocksqueues
from duetime_shard.brokers import rocks as rocks_of
from duetime_shard.brokers.engines import EngineMissing
from duetime_shard.brokers.pops import Pop, outstanding
from duetime_shard.pending import lanes
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.offline.export import export_directory
from duetime_store.offline.summary import summary
from duetime_store.offline.transfer import import_directory
from duetime_store.offline.verify import verify
from rocksdict import Options, Rdict

from tests.format import golden, golden55
from tests.store.conftest import HandClock, Shard
from tests.store.running import Running
from tests.store.test_golden import files

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
INVISIBLE_MS = 60_000
Make = Callable[[Path, Path], Path]


class Broker(Running):
    """A store on a broker's messages, at the moment the broker stopped."""

    def __init__(self, root: Path, now_ms: int) -> None:
        super().__init__(root, delay_levels=DEFAULT_DELAY_LEVELS)
        self.clock = FakeClock(now_ms)

    async def again(self) -> None:
        await self.__aexit__()
        await self.__aenter__()

    async def receive(
        self, group: str, topic: str, queues: Iterable[int], **options: Any
    ) -> list[consumer_pb2.LeasedMessage]:
        numbers = [consumer_pb2.QueueNumber(queue=n, shard_queue=n) for n in queues]
        values: dict[str, Any] = {"max_count": 200, "invisible_ms": INVISIBLE_MS, "queues": numbers, **options}
        values.setdefault("retry_queues", [consumer_pb2.QueueNumber(queue=0, shard_queue=0)])
        request = consumer_pb2.ReceiveRequest(group=group, topic=topic, **values)
        return list((await self.stub.Receive(request, timeout=60)).messages)


def imported(source: Path, target: Path) -> Path:
    before = files(source)
    report = import_directory(source, target, LEVELS, accept_damage=False)
    assert (report.damages, report.losses) == ([], [])
    assert files(source) == before
    return target


def opened(source: Path, target: Path) -> Path:
    """The broker's own directory."""
    return source


def rocks(folder: Path, **families: dict[bytes, bytes]) -> None:
    """A RocksDB with these column families, as a broker leaves it."""
    database = Rdict(str(folder), options=Options(raw_mode=True))
    for name, entries in families.items():
        is_new = name != "default"
        family = database.create_column_family(name, Options(raw_mode=True)) if is_new else database
        for key, value in entries.items():
            family[key] = value
    database.close()
    (folder / "rocksdict-config.json").unlink()


@pytest.fixture(params=golden55.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str, tmp_path: Path) -> Path:
    return golden55.unpack(name, tmp_path)


def ids(messages: list[consumer_pb2.LeasedMessage]) -> dict[str, int]:
    """Attempts by id."""
    found = {one.message.id: one.attempt for one in messages}
    assert len(found) == len(messages)
    return found


@pytest.mark.parametrize("make", [imported, pytest.param(opened, marks=pytest.mark.proof)])
async def test_groups_continue_where_the_broker_left_them(make: Make, name: str, source: Path, tmp_path: Path) -> None:
    committed, pops = golden55.lines(name, "offset"), golden55.lines(name, "pop")
    normal = golden55.lines(name, "normal")
    starts = {line["queue"]: line["next"] for line in committed}
    rest = {line["id"] for line in normal if line["offset"] >= starts[line["queue"]]}
    popped = {line["id"] for line in pops if line["state"].startswith("popped")}
    fresh = {line["id"] for line in normal} - {line["id"] for line in pops}
    group, topic = pops[0]["group"], pops[0]["topic"]
    (received,) = outstanding(source, {})
    # The broker made them invisible for 600 s.
    visible_at_ms = received.popped_at_ms + 600_000
    async with Broker(make(source, tmp_path / "shard"), golden55.ended_at_ms(name)) as store:
        assert ids(await store.receive(committed[0]["id"], topic, range(4))) == dict.fromkeys(rest, 1)
        assert ids(await store.receive(group, topic, range(4))) == dict.fromkeys(fresh, 1)
        await store.clock.advance(visible_at_ms - store.clock.now_ms() - 1)
        assert not popped & ids(await store.receive(group, topic, range(4))).keys()
        await store.clock.advance(1)
        assert ids(await store.receive(group, topic, range(4))) == dict.fromkeys(popped, 2)
        await store.again()
        assert not ids(await store.receive(group, topic, range(4)))
        kinds = {line["topic"]: line["state"] for line in golden55.lines(name, "topic") if "error" not in line}
        assert {topic: store.node.store.queues.counts.types.get(topic) for topic in kinds} == kinds


def losses(root: Path) -> dict[str, str]:
    return {loss.kind: loss.text for loss in verify(root, LEVELS).losses}


async def test_pops_of_a_key_value_store_are_leased(tmp_path: Path) -> None:
    """With popConsumerKVServiceEnable: there are no other records, and an acknowledgement deletes the entry."""
    source, now_ms = golden55.unpack("a-default", tmp_path), golden55.ended_at_ms("a-default")
    places = {line["id"]: line for line in golden55.lines("a-default", "normal")}
    entries = {}
    for offset, until_ms in ((1, now_ms + 5_000), (3, now_ms + 9_000)):
        place = b"g_kv@Da_Normal@" + (2).to_bytes(4, "big") + b"@" + offset.to_bytes(8, "big")
        value = {"popTime": now_ms - 1_000, "groupId": "g_kv", "topicId": "Da_Normal", "queueId": 2, "retryFlag": 0}
        value |= {"invisibleTime": until_ms - now_ms + 1_000, "offset": offset, "attemptTimes": 0, "suspend": False}
        entries[until_ms.to_bytes(8, "big") + place] = json.dumps(value).encode()
    rocks(source / "kvStore", default={}, popState=entries)
    root = imported(source, tmp_path / "shard")
    assert not (root / "kvStore").exists()
    own = {line["offset"]: one for one, line in places.items() if line["queue"] == 2}
    async with Broker(root, now_ms) as store:
        # Those before are acknowledged.
        got = ids(await store.receive("g_kv", "Da_Normal", range(4)))
        assert set(places) - got.keys() == {own[offset] for offset in range(4)}
        await store.clock.advance(5_000)
        assert ids(await store.receive("g_kv", "Da_Normal", range(4))) == {own[1]: 2}
        await store.clock.advance(4_000)
        assert ids(await store.receive("g_kv", "Da_Normal", range(4))) == {own[3]: 2}


async def test_pops_of_an_ordered_group_stay_leased(tmp_path: Path) -> None:
    source, now_ms = golden55.unpack("a-default", tmp_path), golden55.ended_at_ms("a-default")
    order = {"popTime": now_ms - 1_000, "i": 30_000, "o": [0, 1, 2], "oc": {"1": 2}, "l": now_ms, "cm": 1}
    content = {"table": {"Da_Normal@g_fifo": {"2": order}}, "orderedConsumptionLevel": "QUEUE"}
    (source / "config" / "consumerOrderInfo.json").write_text(json.dumps(content))
    own = {line["offset"]: line["id"] for line in golden55.lines("a-default", "normal") if line["queue"] == 2}
    async with Broker(imported(source, tmp_path / "shard"), now_ms) as store:
        assert await store.receive("g_fifo", "Da_Normal", [2], ordered=True) == []
        await store.clock.advance(29_000)
        got = await store.receive("g_fifo", "Da_Normal", [2], ordered=True)
        # The first counts as failed for the third time, the second was not reached.
        assert [(one.message.id, one.attempt) for one in got][:2] == [(own[1], 4), (own[2], 1)]


async def test_retries_of_pop_reach_the_group(tmp_path: Path) -> None:
    """In %RETRY%group_topic: two messages received again, and three not yet."""
    source, now_ms = golden.unpack("rmq-5.3.3-clean", tmp_path), 1_795_225_200_000
    content = configs.read(source / "config", configs.CONSUMER_OFFSETS)
    assert content is not None
    again = Pop("Dt_g_pop", "%RETRY%Dt_g_pop_DtPop", 0, (0, 1), now_ms - 1_000, now_ms + 5_000, 0, 2)
    content["offsetTable"]["%RETRY%Dt_g_pop_DtPop@Dt_g_pop"] = {"0": 2}
    (source / "config" / configs.CONSUMER_OFFSETS).write_text(json.dumps(content | {configs.POPS: [again.to_dict()]}))
    async with Broker(source, now_ms) as store:
        got = await store.receive("Dt_g_pop", "DtPop", range(2))
        told = sorted((one.message.body, one.attempt) for one in got)
        assert told == [(b"pop 12", 2), (b"pop 4", 2), (b"pop 8", 2)]
        await store.again()
        assert await store.receive("Dt_g_pop", "DtPop", range(2)) == []
        await store.clock.advance(5_000)
        got = await store.receive("Dt_g_pop", "DtPop", range(2))
        assert sorted((one.message.body, one.attempt) for one in got) == [(b"pop 0", 3), (b"pop 16", 3)]


@pytest.mark.parametrize("cut", ["000011.sst", "MANIFEST-000005", "CURRENT"])
@pytest.mark.parametrize("folder", ["consumerOffsets", "topics"])
def test_cut_rocksdb_is_a_loss_by_name(cut: str, folder: str, tmp_path: Path) -> None:
    source = golden55.unpack("c-cq-rocksdb", tmp_path)
    path = source / "config" / folder / cut
    os.truncate(path, path.stat().st_size // 2)
    kind = {"consumerOffsets": "offsets", "topics": "topics"}[folder]
    assert f"config/{folder}" in losses(source)[kind]
    assert import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False).losses
    assert not (tmp_path / "shard").exists()
    import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False, accept_loss=frozenset((kind,)))
    assert (tmp_path / "shard" / "config").exists()


@pytest.mark.parametrize(
    ("name", "folder", "kinds"),
    [
        ("n-all-rolled-killed", "config/consumerOffsets", {"offsets"}),
        ("n-all-rolled-killed", "config/topics", {"topics"}),
        ("n-all-rolled-killed", "kvStore", {"pop"}),
        ("l-v2-lmq-killed", "config/rdb", {"offsets", "topics", "groups"}),
        ("k-single", "config/metadata", {"offsets", "topics", "groups"}),
    ],
)
def test_cut_writes_are_a_loss(name: str, folder: str, kinds: set[str], tmp_path: Path) -> None:
    """A kill leaves the log of writes whole. With its last ones cut, the others count if the loss is accepted."""
    source = golden55.unpack(name, tmp_path)
    assert losses(source) == {}
    # After a clean stop the last table has them.
    files = [*sorted((source / folder).glob("*.sst")), *sorted((source / folder).glob("*.log"))]
    writes = [path for path in files if path.stat().st_size][-1]
    os.truncate(writes, writes.stat().st_size - 5)
    assert losses(source).keys() == kinds
    assert all(folder in text for text in losses(source).values())
    import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False, accept_loss=frozenset(kinds))
    offsets = configs.read(tmp_path / "shard" / "config", configs.CONSUMER_OFFSETS)
    assert bool((offsets or {}).get("offsetTable")) == ("killed" in name)


def test_damaged_queues_in_rocksdb_are_damage_that_the_log_mends(tmp_path: Path) -> None:
    source = golden55.unpack("c-cq-rocksdb", tmp_path)
    path = source / "consumequeue" / "000011.sst"
    os.truncate(path, path.stat().st_size // 2)
    report = verify(source, LEVELS)
    assert [damage.file for damage in report.damages] == ["consumequeue"]
    assert report.losses == []


def test_unit_in_rocksdb_is_compared_with_its_record(tmp_path: Path) -> None:
    source = golden55.unpack("c-cq-rocksdb", tmp_path)
    folder = source / "consumequeue"
    database = Rdict(str(folder), options=Options(raw_mode=True), column_families={"offset": Options(raw_mode=True)})
    prefix = (9).to_bytes(4, "big") + b"\1Dc_Normal\1" + (2).to_bytes(4, "big") + b"\1"
    key = prefix + (3).to_bytes(8, "big")
    database[key] = database[key][:8] + (77).to_bytes(4, "big") + database[key][12:]
    del database[prefix + (14).to_bytes(8, "big")]
    database.close()
    (folder / "rocksdict-config.json").unlink()
    wrong, missing = verify(source, LEVELS).damages
    assert (wrong.message.topic, wrong.message.queueId, wrong.message.queueOffset) == ("Dc_Normal", 2, 3)
    assert wrong.what.startswith("unit says size 77")
    assert missing.what.startswith("1 records have no unit")


def test_queues_of_a_former_engine_are_no_damage(tmp_path: Path) -> None:
    """A broker whose `storeType` was changed writes only to its new queues."""
    source = golden55.unpack("c-cq-rocksdb", tmp_path)
    with rocks_of.opened(source, "consumequeue") as database:
        queues = {(one.topic, one.queue): one for one in rocksqueues.queues(database, "consumequeue")}
        units = queues["Dc_Normal", 0].read(0, 3)
    path = source / "consumequeue" / "Dc_Normal" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(units.tobytes().ljust(20_000, b"\0"))
    report = verify(source, LEVELS)
    assert report.damages == []
    assert any("are in the queues of one engine only" in note for note in report.notes)
    shard = imported(source, tmp_path / "shard")
    assert not (shard / "consumequeue").exists()
    path.write_bytes(units[::-1].tobytes().ljust(20_000, b"\0"))
    assert verify(source, LEVELS).damages


def test_one_rocksdb_for_all_configs_is_read_as_three(tmp_path: Path) -> None:
    """With useSingleRocksDBForAllConfigs: the families of one have the content of three."""
    source = golden55.unpack("c-cq-rocksdb", tmp_path)
    wanted = brokerconfig.read(source)
    families = {"consumerOffsets": "consumerOffset", "topics": "topic", "subscriptionGroups": "subscriptionGroup"}
    content: dict[str, dict[bytes, bytes]] = {"topicVersion": {b"kvDataVersionKey": b'{"counter":11}'}}
    for folder, family in families.items():
        with rocks_of.opened(source, f"config/{folder}") as database:
            content[family] = dict(database.items("default"))
        shutil.rmtree(source / "config" / folder)
    rocks(source / "config" / "metadata", default={}, **content)
    root = imported(source, tmp_path / "shard")
    assert not (root / "config" / "metadata").exists()
    found = {name: configs.read(root / "config", name) for name in (configs.TOPICS, configs.GROUPS)}
    assert (found[configs.TOPICS], found[configs.GROUPS]) == (wanted.topics, wanted.groups)
    offsets = configs.read(root / "config", configs.CONSUMER_OFFSETS) or {}
    assert offsets["offsetTable"] == (wanted.offsets or {})["offsetTable"]


def test_unknown_engines_are_losses_by_their_names(tmp_path: Path) -> None:
    source = golden55.unpack("a-default", tmp_path)
    for name in ("shardOffsets.json", "shardOffsets.json.bak", "messageRequestMode.json", "notes.txt"):
        (source / "config" / name).write_text('{"a":1}')
    rocks(source / "config" / "priorities", default={b"a": b"b"})
    rocks(source / "lanestore", default={}, lanes={b"a": b"b"})
    shutil.rmtree(source / "rocksdbstore")
    rocks(source / "rocksdbstore", default={}, timer={}, trans={}, later={b"a": b"b"}, unused={})
    (source / "dledger-n0").mkdir()
    (source / "dledger-n0" / "data").touch()
    (source / "epochFileCheckpoint").touch()
    (source / "newfolder").mkdir()
    kinds = {"config/priorities/default", "lanestore/lanes", "rocksdbstore/later", "dledger", "controller", "newfolder"}
    kinds |= {"config/shardOffsets.json", "config/shardOffsets.json.bak"}
    assert losses(source).keys() == kinds
    before = files(source)
    report = import_directory(
        source, tmp_path / "shard", LEVELS, accept_damage=False, accept_loss=frozenset(["dledger"])
    )
    assert {loss.kind for loss in report.losses} == kinds
    assert not (tmp_path / "shard").exists()
    assert files(source) == before
    import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False, accept_loss=frozenset(kinds))
    # The copy starts without them, as often as it is asked to.
    shard = Shard(tmp_path / "shard", HandClock(), delay_levels=DEFAULT_DELAY_LEVELS)
    shard.reopen()
    shard.crash()


def test_users_and_rights_of_a_broker_are_losses_of_their_kinds(tmp_path: Path) -> None:
    source = golden55.unpack("a-default", tmp_path)
    for folder in ("users", "acls"):
        rocks(source / "config" / folder, default={})
    assert losses(source) == {}
    for folder in ("users", "acls"):
        rocks(source / "config" / folder, default={b"rocketmq": b"{}"}, other={b"a": b"b"})
    found = losses(source)
    assert found.keys() == {"users", "acls"}
    assert "`duetime users`" in found["users"]
    assert "`duetime grants`" in found["acls"]
    import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False, accept_loss=frozenset(found))
    assert not (tmp_path / "shard" / "config" / "users").exists()


@pytest.mark.parametrize("folder", ["users", "acls"])
def test_damaged_users_and_rights_are_losses_of_their_kinds(tmp_path: Path, folder: str) -> None:
    source = golden55.unpack("a-default", tmp_path)
    rocks(source / "config" / folder, default={b"rocketmq": b"{}"})
    os.truncate(source / "config" / folder / "CURRENT", 3)
    assert losses(source).keys() == {folder}


def test_folder_that_nothing_can_replace_is_its_loss_whatever_it_has(tmp_path: Path) -> None:
    source = golden55.unpack("a-default", tmp_path)
    rocks(source / "dledger-n0", default={b"a": b"{}"})
    os.truncate(source / "dledger-n0" / "CURRENT", 3)
    assert losses(source).keys() == {"dledger"}


def test_store_does_not_start_on_unknown_engines(tmp_path: Path) -> None:
    source = golden55.unpack("a-default", tmp_path)
    (source / "dledger-n0").mkdir()
    (source / "dledger-n0" / "data").touch()
    before = files(source)
    with pytest.raises(StartupError, match="dledger: the commit log of a DLedger group"):
        Shard(source, HandClock(), delay_levels=DEFAULT_DELAY_LEVELS)
    assert {name: content for name, content in files(source).items() if name in before} == before


def test_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    verify(golden55.unpack("a-default", tmp_path), LEVELS)
    source = golden55.unpack("g-config-v2", tmp_path)
    with pytest.raises(EngineMissing, match=r"config/rdb is a RocksDB.*duetime-server\[rocketmq\]"):
        verify(source, LEVELS)
    with pytest.raises(StartupError, match="config/rdb is a RocksDB"):
        Shard(source, HandClock(), delay_levels=DEFAULT_DELAY_LEVELS)


def test_inspect_shows_each_engine(tmp_path: Path) -> None:
    found = summary(read(golden55.unpack("c-cq-rocksdb", tmp_path), LEVELS))
    assert found["engines"]["consumequeue"] == {"default": 287, "offset": 92}
    assert found["consumerOffset"]["Dc_Normal@Dc_g_half"] == {"0": 7, "1": 7, "2": 7, "3": 7}
    assert found["topics"]["Dc_Prio"]["readQueueNums"] == 8
    assert [pop["offsets"] for pop in found["pops"]] == [[2, 3, 4, 5]]


def test_units_of_lite_topics_are_compared_with_records_of_the_parent(tmp_path: Path) -> None:
    source = golden55.unpack("f-lite", tmp_path)
    path = source / "consumequeue" / "%LMQ%$Df_Lite$lite1" / "0" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(20)
        file.write((67681).to_bytes(8, "big"))
    (wrong,) = verify(source, LEVELS).damages
    assert (wrong.file, wrong.message.queueOffset) == (f"consumequeue/%LMQ%$Df_Lite$lite1/0/{'0' * 20}", 1)


def test_offsets_of_lite_topics_are_kept_beside_the_others(tmp_path: Path) -> None:
    source = golden55.unpack("f-lite", tmp_path)
    path = source / "config" / configs.LITE_OFFSETS
    content = configs.parse(path.read_text())
    content["lmqOffsetTable"] = {"%LMQ%$Df_Lite$lite0@g": 1}
    path.write_text(json.dumps(content))
    config = imported(source, tmp_path / "shard") / "config"
    assert configs.read(config, configs.LITE_OFFSETS) == {"lmqOffsetTable": {"%LMQ%$Df_Lite$lite0@g": 1}}
    offsets = configs.read(config, configs.CONSUMER_OFFSETS)
    assert offsets is not None
    assert offsets["offsetTable"]["Df_Normal@Df_g_half"] == {"0": 7, "1": 7, "2": 7, "3": 7}


async def test_export_has_no_receive_of_a_broker(tmp_path: Path) -> None:
    """A broker would make the messages visible again, though they are acknowledged here."""
    now_ms = golden55.ended_at_ms("a-default")
    root = imported(golden55.unpack("a-default", tmp_path), tmp_path / "shard")
    async with Broker(root, now_ms) as store:
        await store.clock.advance(600_000)
        got = await store.receive("Da_g_pop", "Da_Normal", range(4))
        receipts = [one.receipt for one in got]
        await store.stub.Ack(consumer_pb2.AckRequest(group="Da_g_pop", receipts=receipts), timeout=60)
    made = tmp_path / "made"
    exported = export_directory(root, made, LEVELS, accept_damage=False, now_ms=now_ms + 600_000)
    assert exported.timers
    state = read(made, LEVELS)
    timers = [lane for number, lane in lanes(state).items() if is_timer_lane(number)]
    positions = [unit[0] for lane in timers for _, units in lane.pending() for unit in units.tolist()]
    records = [found for position in positions if (found := message(state, position))]
    topics = {decode_properties(found.properties)["REAL_TOPIC"] for found in records}
    assert topics == {"Da_Delay"}
    offsets = configs.read(made / "config", configs.CONSUMER_OFFSETS)
    assert offsets is not None
    assert offsets["offsetTable"]["Da_Normal@Da_g_pop"] == {str(queue): 15 for queue in range(4)}
    (warning,) = exported.warnings
    assert "no queues of its lite topics (1 topics of the type LITE)" in warning
