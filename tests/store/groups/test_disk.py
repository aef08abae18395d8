"""State of groups when the disk is full, when retention deletes, and when their files are damaged."""

from pathlib import Path

import grpc
import pytest
from duetime_core.rpc.calls import translate
from duetime_store.files import configs
from duetime_store.groups import snapshot

from tests.faulty_disk import FaultyDisk
from tests.rounds import one_by_one
from tests.store.conftest import MIB, flip, sent
from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, OK, TOPIC, Consuming, copy, names, told
from tests.store.test_retention import MINUTE_MS, run

LONG_MS = 3_600_000
LARGE = 600_000
RETAINED = {"retention_ms": 2 * MINUTE_MS, "retention_check_ms": 1 << 30}


async def refusal(store: Consuming) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.send("refused", body=bytes(LARGE))
    return translate(caught.value, "the store", "NO_ANSWER").reason


async def let_all_leave(store: Consuming) -> None:
    """Fills segments until the first ones leave by age."""
    for turn in range(30):
        await store.put(*(sent(f"noise-{turn}-{n}", topic="noise", body=bytes(1_000)) for n in range(100)))
    await run(store.clock, store.node.parts.cleaner.clean())
    store.clock.move(3 * MINUTE_MS)
    await run(store.clock, store.node.parts.cleaner.clean())
    assert store.node.store.log.min_position > 0


async def test_leases_end_and_copies_settle_on_a_full_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Consuming(tmp_path / "store", disk=disk, reserve_bytes=MIB, disk_used_max=1) as store:
        await store.send("a", "b", "c", "d")
        got = await store.receive(max_count=3, invisible_ms=LONG_MS)
        disk.leave(100_000)
        assert await refusal(store) == "DISK_FULL"
        assert await store.ack(got[0]) == [OK]
        assert await store.settle(got[1]) == [OK]
        assert await store.change(got[2]) == [OK]
        assert told(await store.receive(invisible_ms=LONG_MS)) == [("c", 2), ("b", 2), ("d", 1)]
        assert await refusal(store) == "DISK_FULL"
        await store.kill()
        assert await store.receive() == []
        assert (await store.describe()).queues[0].in_flight == 2


async def test_deleted_messages_are_no_longer_outstanding(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store", **RETAINED) as store:
        await store.send("a", "b", "c", "d")
        got = await store.receive(max_count=3, invisible_ms=LONG_MS)
        await store.ack(got[0])
        await let_all_leave(store)
        found = (await store.describe()).queues[0]
        assert (found.min_offset, found.committed_offset, found.next_offset) == (4, 4, 4)
        assert (found.lag, found.in_flight, found.waiting) == (0, 0, 0)
        assert store.node.parts.groups.lost_count == 2
        assert await store.ack(got[1]) == [EXPIRED]
        assert await store.change(got[1], ms=1_000) == [EXPIRED]
        assert [one.status for one in await store.leased(got[2])] == [EXPIRED]
        assert (await store.defer(got[2], ms=1_000))[0] == [EXPIRED]
        await store.send("e")
        assert names(await store.receive()) == ["e"]


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_journal_may_drop_records_in_the_snapshot(tmp_path: Path, damaged: bool) -> None:
    """Without the snapshot, a group resumes from its offset in consumerOffset.json: nothing is skipped."""
    async with Consuming(tmp_path / "store", **RETAINED) as store:
        await store.send("old")
        await store.ack(*await store.receive())
        await let_all_leave(store)
        await store.send("a", "b", "c")
        got = await store.receive(max_count=2, invisible_ms=LONG_MS)
        await store.ack(got[1])
        await store.node.parts.checkpointer.write()
        await store.send("d")
        path = store.settings.data_dir / snapshot.FILE
        await store.kill((lambda: flip(path, 40)) if damaged else lambda: None)
        queue = store.node.store.queues.find("DT_GROUPS", 0)
        assert queue.min_offset > 0
        assert names(await store.receive()) == ["c", "d"]
        assert await store.ack(got[0]) == [OK]


def broker_writes(store: Consuming, topic: str, offset: int) -> None:
    """As a broker leaves consumerOffset.json that has served the directory."""
    path = store.settings.data_dir / "config" / configs.CONSUMER_OFFSETS
    content = configs.read(path.parent, path.name) or {}
    content["offsetTable"] = {**content.get("offsetTable", {}), f"{topic}@{GROUP}": {0: offset}}
    path.write_text(configs.render(content))


async def outstanding(store: Consuming) -> None:
    """Of a to f: a and d are done, b and c under a lease, e and f not given yet."""
    await store.send("a", "b", "c", "d", "e", "f")
    got = await store.receive(max_count=4, invisible_ms=LONG_MS)
    await store.ack(got[0], got[3])
    await store.node.parts.checkpointer.write()


LEFT = [
    (0, ["b", "c", "e", "f"]),
    (1, ["b", "c", "e", "f"]),
    (2, ["c", "e", "f"]),
    (4, ["e", "f"]),
    (5, ["f"]),
    (6, []),
    (99, []),
]


@pytest.mark.parametrize(("offset", "left"), one_by_one(LEFT))
async def test_messages_of_a_broker_are_not_redelivered(tmp_path: Path, offset: int, left: list[str]) -> None:
    async with Consuming(tmp_path / "store") as store:
        await outstanding(store)
        await store.kill(lambda: broker_writes(store, TOPIC, offset))
        store.clock.move(2 * LONG_MS)
        assert sorted(names(await store.receive())) == left
        # It is in the journal: also where the snapshot is damaged.
        store.clock.move(2 * LONG_MS)
        await store.kill(lambda: flip(store.settings.data_dir / snapshot.FILE, 40))
        assert sorted(names(await store.receive())) == left


async def test_a_brokers_offsets_count_once(tmp_path: Path) -> None:
    """A group that was reset to an earlier offset afterwards keeps it after any crash."""
    async with Consuming(tmp_path / "store") as store:
        await outstanding(store)
        await store.kill(lambda: broker_writes(store, TOPIC, 5))
        assert (await store.reset(earliest=True)).to_offset == 0
        await store.kill()
        assert names(await store.receive()) == ["a", "b", "c", "d", "e", "f"]


async def test_a_brokers_offsets_count_once_where_no_group_has_received(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store") as store:
        await store.send("a", "b", "c")
        await store.kill(lambda: broker_writes(store, TOPIC, 2))
        assert names(await store.receive()) == ["c"]
        assert (await store.reset(earliest=True)).to_offset == 0
        await store.kill()
        assert names(await store.receive()) == ["a", "b", "c"]


async def test_our_own_file_never_counts_against_the_journal(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store") as store:
        await store.send("a", "b", "c")
        await store.ack(*await store.receive())
        await store.node.parts.checkpointer.write()
        assert (await store.reset(earliest=True)).to_offset == 0
        await store.kill()
        assert names(await store.receive()) == ["a", "b", "c"]


async def test_a_bit_that_flips_in_the_snapshot_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anywhere in it: the journal is read from its start."""
    async with Consuming(tmp_path / "store") as store:
        await store.send("a", "b", "c", "d")
        got = await store.receive(max_count=3)
        await store.ack(got[0])
        await store.settle(got[1], topic=f"%DLQ%{GROUP}")
        await store.node.parts.checkpointer.write()
        path = store.settings.data_dir / snapshot.FILE
        size = path.stat().st_size
        for at in (0, 5, 9, size // 2, size - 1):
            capsys.readouterr()
            await store.kill(lambda at=at: flip(path, at))  # type: ignore[misc]
            assert "snapshot of groups damaged" in capsys.readouterr().out
            queue = (await store.describe()).queues[0]
            assert (queue.committed_offset, queue.next_offset, queue.in_flight) == (2, 3, 1)
        await store.kill(lambda: path.write_bytes(path.read_bytes()[: size // 2]))
        assert "snapshot of groups damaged" in capsys.readouterr().out
        await store.clock.advance(INVISIBLE_MS)
        assert told(await store.receive()) == [("c", 2), ("d", 1)]


async def test_a_damaged_journal_record_is_reported_and_redelivers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Consuming(tmp_path / "store") as store:
        await store.send("a", "b")
        (first,) = await store.receive(max_count=1, invisible_ms=LONG_MS)
        await store.ack(first)
        journal = store.node.store.queues.find("DT_GROUPS", 0)
        position = int(journal.read(journal.max_offset - 1, 1)["position"][0])
        log_file = tmp_path / "store" / "commitlog" / ("0" * 20)
        snapshot_file = store.settings.data_dir / snapshot.FILE

        def damage() -> None:
            flip(log_file, position + 100)
            snapshot_file.unlink(missing_ok=True)

        await store.send("behind")
        await store.kill(damage)
        assert "record of group events damaged" in capsys.readouterr().out
        assert names(await store.receive()) == ["b", "behind"]
        # Its Ack is lost, its lease is not.
        assert await store.ack(first) == [OK]


@pytest.mark.parametrize("topic", ["", f"%DLQ%{GROUP}"])
@pytest.mark.parametrize("with_snapshot", [True, False])
async def test_torn_copy_leaves_its_message_leased(tmp_path: Path, topic: str, with_snapshot: bool) -> None:
    """A power cut may keep the end of the lease and later records of the copy's queue."""
    async with Consuming(tmp_path / "store") as store:
        await store.send("a", "b")
        got = await store.receive(invisible_ms=LONG_MS)
        await store.node.parts.checkpointer.write()
        assert await store.settle(got[0], topic=topic) == [OK]
        assert await store.settle(got[1], topic=topic) == [OK]
        copies = store.node.store.queues.find(topic or f"%RETRY%{GROUP}", 0)
        position, size, _ = copies.read(0, 1)[0].item()

        def tear() -> None:
            flip(tmp_path / "store" / "commitlog" / ("0" * 20), position + size // 2)
            if not with_snapshot:
                (store.settings.data_dir / snapshot.FILE).unlink()

        await store.kill(tear)
        assert (await store.describe()).queues[0].in_flight == 1
        # The journal alone has that, too, once a checkpoint covers the torn copy.
        await store.node.parts.checkpointer.write()
        await store.kill((store.settings.data_dir / snapshot.FILE).unlink)
        assert (await store.describe()).queues[0].in_flight == 1
        await store.clock.advance(LONG_MS)
        assert ("a", 2) in told(await store.receive())


async def test_leases_are_given_again_once_some_have_ended(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store", leases_max=8) as store:
        await store.send("a", "b", "c")
        got = await store.receive()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await store.receive()
        error = translate(caught.value, "the store", "NO_ANSWER")
        assert (error.reason, error.text) == (
            "LEASES_EXHAUSTED",
            "2 messages of all groups are outstanding on this shard; the limit is 8; 2 belong to ipv4:127.0.0.1; "
            "its limit is 4; 2 belong to group billing; its limit is 2",
        )
        # Leases of received messages still work; a copy replaces its message.
        assert await store.change(got[0], ms=LONG_MS) == [OK]
        await store.put(copy("retried"))
        assert await store.ack(got[1]) == [OK]
        assert len(await store.receive()) == 1
