"""Building the index: behind the log, over files, through restarts and crashes, from nothing."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_core.clock import SystemClock
from duetime_core.testing import FakeClock
from duetime_format import record
from duetime_format.keys import key_hash, tag_word
from duetime_format.levels import DEFAULT_DELAY_LEVELS
from duetime_format.properties import value_of
from duetime_store.files import configs
from duetime_store.files.worker import FileWorker
from duetime_store.finding.index import Header, IndexFile, Shape, file_paths
from duetime_store.finding.indexer import BUSY_MS_MAX, Indexer, Mark, pieces, read_mark
from duetime_store.log.newkeys import NewKeys

from tests.format import golden55
from tests.format.golden import golden_dir, params, summary, units, unpack
from tests.store import conftest
from tests.store.conftest import MIB, HandClock, Shard

SMALL = Shape(50, 400)


def sent(message_id: str, **fields: Any) -> bytes:
    """As conftest's, with a property of the user instead of a tag: it has one key."""
    return conftest.sent(message_id, **fields).replace(b"TAGS\x01paid", b"paid\x01TAGS")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Built:
    """An indexer whose loop runs until it has read every published record; then it is closed, or dies as in a crash."""

    def __init__(self, shard: Shard, thread: ThreadPoolExecutor, shape: Shape = SMALL) -> None:
        self.shard = shard
        self.indexer = Indexer(shard.store, FileWorker(shard.directory, thread), SystemClock(), shape=shape)

    async def caught_up(self) -> None:
        loop = asyncio.ensure_future(self.indexer.run())
        async with asyncio.timeout(60):
            while not self.indexer.opened.is_set() or self.indexer.behind_bytes:
                await asyncio.wait({loop}, timeout=0.001)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    async def __aenter__(self) -> Indexer:
        await self.caught_up()
        return self.indexer

    async def __aexit__(self, *_: object) -> None:
        await self.indexer.close()


def found(indexer: Indexer, word: str, topic: str = "orders") -> list[int]:
    """Positions, newest first."""
    wanted = key_hash(topic, word)
    return [hit.position for file in indexer.files for hit in file.chain(wanted) if hit]


def positions(shard: Shard) -> dict[str, int]:
    """Log position by message id."""
    run, _ = next(pieces(shard.store.log, 0, shard.store.published_end))
    assert run is not None
    names = [value_of(run.properties(index), b"UNIQ_KEY") for index in range(run.count)]
    return {(name or b"").decode(): int(at) for name, at in zip(names, run.positions, strict=True)}


def contents(indexer: Indexer) -> list[list[tuple[int, int]]]:
    """(hash, position) of all entries, file by file."""
    return [file.entries()[["hash", "position"]].tolist() for file in indexer.files[::-1]]


def flat(files: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [entry for entries in files for entry in entries]


async def test_every_message_is_in_the_index_once(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(*(sent(f"{number}") for number in range(100)))
    expected = positions(shard)
    async with Built(shard, thread) as indexer:
        assert {word: found(indexer, word) for word in expected} == {word: [at] for word, at in expected.items()}
        assert found(indexer, "100") == []


async def test_kept_and_read_keys_give_the_same_files(shard: Shard, thread: ThreadPoolExecutor) -> None:
    for number in range(300):
        shard.put(sent(f"a{number}", level=number % 3), sent(f"b{number}", topic="payments", queue=number % 5))
        shard.clock.wall_ms += 700
    assert shard.store.new_keys.start == 0
    async with Built(shard, thread):
        pass
    kept = [path.read_bytes() for path in file_paths(shard.root / "index")]
    assert shard.store.new_keys.start == shard.store.published_end
    (shard.directory.config / configs.INDEX).unlink()
    shard.reopen()
    assert shard.store.new_keys.start == shard.store.published_end
    async with Built(shard, thread) as indexer:
        assert all(len(found(indexer, f"b{number}", "payments")) == 1 for number in range(300))
    assert [path.read_bytes() for path in file_paths(shard.root / "index")] == kept
    assert len(kept) > 1


async def test_dropped_keys_are_read_from_the_log(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.store.new_keys = NewKeys(0, 200)
    shard.put(*(sent(f"{number}") for number in range(100)))
    shard.put(*(sent(f"{number}") for number in range(100, 150)))
    shard.put(*(sent(f"{number}") for number in range(150, 300)))
    assert 0 < shard.store.new_keys.start < shard.store.published_end
    async with Built(shard, thread) as indexer:
        entries = flat(contents(indexer))
        assert len(entries) == len(set(entries)) == 300


async def test_keys_of_records_that_were_not_stored_are_not_indexed(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(sent("before"))
    shard.store.put(sent("undone"))
    shard.store.undo()
    shard.put(sent("after"))
    async with Built(shard, thread) as indexer:
        assert [len(found(indexer, word)) for word in ("before", "undone", "after")] == [1, 0, 1]
        assert len(flat(contents(indexer))) == 2


async def test_under_load_keys_are_written_after_a_while(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(sent("first"))
    clock = FakeClock()
    indexer = Indexer(shard.store, FileWorker(shard.directory, thread), clock, shape=SMALL)
    await indexer._open()
    # Keep a record staged from now on.
    shard.store.put(sent("staged"))
    loop = asyncio.ensure_future(indexer._follow())
    await clock.advance(0)
    await clock.advance(BUSY_MS_MAX - 1)
    assert indexer.behind_bytes
    await clock.advance(1)
    async with asyncio.timeout(60):
        while indexer.behind_bytes:
            await asyncio.wait({loop}, timeout=0.001)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert len(found(indexer, "first")) == 1
    await indexer.close()


async def test_nothing_is_written_for_a_log_without_keys(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(record.encode(record.Record("orders", 0, b"body", b"paid\x01TAGS")))
    async with Built(shard, thread) as indexer:
        assert indexer.files == []
    assert file_paths(shard.root / "index") == []
    assert read_mark(shard.directory.config) == Mark("", Header(), 110)


async def test_files_follow_each_other_and_no_record_is_split(shard: Shard, thread: ThreadPoolExecutor) -> None:
    words = b" ".join(b"k%d" % number for number in range(149))
    all_sent = [sent(f"ID{number}").replace(b"paid\x01TAGS", b"KEYS\x01" + words) for number in range(7)]
    shard.put(*[record.encode(record.decode(fixed(one))) for one in all_sent])
    async with Built(shard, thread) as indexer:
        assert [len(entries) for entries in contents(indexer)] == [300, 300, 300, 150]
        assert len(found(indexer, "k7")) == 7
        names = [int(file.path.name) for file in indexer.files]
        assert names == sorted(set(names), reverse=True)
        assert all(len(file.path.name) == 17 for file in indexer.files)
    # Closed, each is whole for another reader.
    for path in file_paths(shard.root / "index"):
        file = IndexFile(path, SMALL)
        assert file.header.used_slots == np.count_nonzero(file.slots()) > 0
        file.close()


def fixed(encoded: bytes) -> bytes:
    """A record whose properties were replaced by longer ones, with its lengths right again."""
    head, _, properties = encoded.partition(b"orders")
    body = head[88 : 88 + int.from_bytes(head[84:88], "big")]
    return record.encode(record.Record("orders", 0, body, properties[2:]))


async def test_tag_leads_to_all_its_messages(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(*(conftest.sent(f"{number}") for number in range(3)), sent("3"), conftest.sent("4", topic="payments"))
    places = positions(shard)
    async with Built(shard, thread) as indexer:
        assert found(indexer, tag_word("paid")) == [places["2"], places["1"], places["0"]]
        assert found(indexer, tag_word("paid"), "payments") == [places["4"]]


async def test_more_keys_than_a_file_takes_go_into_several(shard: Shard, thread: ThreadPoolExecutor) -> None:
    words = b" ".join(b"k%d" % number for number in range(1_000))
    shard.put(sent("before"), record.encode(record.Record("orders", 0, b"", b"KEYS\x01" + words)))
    async with Built(shard, thread) as indexer:
        assert [len(entries) for entries in contents(indexer)] == [1, 399, 399, 202]
        assert len(found(indexer, "k999")) == 1


async def test_a_restart_resumes(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(*(sent(f"{number}") for number in range(500)))
    async with Built(shard, thread) as indexer:
        before = contents(indexer)
    shard.put(*(sent(f"{number}") for number in range(500, 600)))
    shard.reopen()
    async with Built(shard, thread) as indexer:
        after = contents(indexer)
        assert after[0] == before[0]
        assert flat(after)[:500] == flat(before)
        assert len(flat(after)) == 600


async def test_after_a_crash_nothing_is_missing_and_nothing_doubled(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(*(sent(f"{number}") for number in range(300)))
    async with Built(shard, thread):
        pass
    shard.put(*(sent(f"{number}") for number in range(300, 450)))
    lost = Built(shard, thread)
    await lost.caught_up()
    assert sum(map(len, contents(lost.indexer))) == 450
    shard.put(*(sent(f"{number}") for number in range(450, 500)))
    shard.reopen()
    async with Built(shard, thread) as indexer:
        entries = flat(contents(indexer))
        assert len(entries) == len(set(entries)) == 500
        assert all(len(found(indexer, f"{number}")) == 1 for number in range(500))
    for file in lost.indexer.files:
        file.close()


@pytest.mark.parametrize("damage", ["no mark", "mark", "file", "header", "size", "newer", "log"])
async def test_a_missing_or_damaged_index_is_made_again(shard: Shard, thread: ThreadPoolExecutor, damage: str) -> None:
    shard.put(*(sent(f"{number}") for number in range(600)))
    async with Built(shard, thread) as indexer:
        whole = contents(indexer)
    assert len(whole) == 2
    first, second = file_paths(shard.root / "index")
    mark = shard.directory.config / configs.INDEX
    if damage == "no mark":
        mark.unlink()
        mark.with_suffix(".json.bak").unlink()
    elif damage == "mark":
        mark.write_text('{"file":7,"position":"x"}')
    elif damage == "file":
        second.unlink()
    elif damage == "header":
        with first.open("r+b") as file:
            file.seek(36)
            file.write(b"\x7f")
    elif damage == "size":
        first.write_bytes(b"short")
    elif damage == "newer":
        (second.parent / "99990101000000000").write_bytes(bytes(SMALL.file_bytes))
    else:
        mark.write_text(mark.read_text().replace('"position":', '"position":9'))
    async with Built(shard, thread) as indexer:
        assert contents(indexer) == whole
    assert len(file_paths(shard.root / "index")) == 2


async def test_blanks_large_records_and_damage_are_stepped_over(
    tmp_path: Path, clock: HandClock, thread: ThreadPoolExecutor
) -> None:
    shard = Shard(tmp_path / "store", clock)
    shard.put(*(sent(f"{number}", body=bytes(400_000)) for number in range(5)))
    shard.put(sent("damaged"), sent("last"))
    # This process does not read its own entries again.
    shard.reopen()
    position = shard.store.published_end - 2 * len(sent("last")) - 3
    path = shard.root / "commitlog" / f"{position - position % MIB:020d}"
    with path.open("r+b") as file:
        file.seek(position % MIB + 89)
        file.write(b"\xff")
    async with Built(shard, thread) as indexer:
        assert [len(found(indexer, f"{number}")) for number in range(5)] == [1] * 5
        assert (len(found(indexer, "damaged")), len(found(indexer, "last"))) == (0, 1)
    shard.crash()


async def test_retention_may_delete_unread_records(
    tmp_path: Path, clock: HandClock, thread: ThreadPoolExecutor
) -> None:
    shard = Shard(tmp_path / "store", clock)
    shard.put(*(sent(f"{number}", body=bytes(400_000)) for number in range(4)))
    shard.reopen()
    shard.put(sent("kept", body=bytes(400_000)))
    indexer = Built(shard, thread).indexer
    await indexer._open()
    log = shard.store.log
    while log.min_position + log.segment_bytes < shard.store.published_end:
        first = log.segment_at(log.min_position)
        assert first is not None
        log.drop(first)
    assert 0 < shard.store.new_keys.start <= log.min_position
    while indexer.behind_bytes:
        await indexer._step()
    assert (len(found(indexer, "3")), len(found(indexer, "kept"))) == (0, 1)
    await indexer.close()
    shard.crash()


async def test_a_full_disk_stops_indexing_until_there_is_room(
    shard: Shard, thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.put(*(sent(f"{number}") for number in range(100)))
    built = Built(shard, thread)
    await built.caught_up()
    shard.put(*(sent(f"{number}") for number in range(100, 200)))
    write = shard.directory.disk.write

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard.directory.disk, "write", full)
    with pytest.raises(OSError, match="No space"):
        await built.indexer._step()
    assert sum(map(len, contents(built.indexer))) == 100
    monkeypatch.setattr(shard.directory.disk, "write", write)
    await built.indexer._step()
    assert sum(map(len, contents(built.indexer))) == 200
    assert all(len(found(built.indexer, f"{number}")) == 1 for number in range(200))
    await built.indexer.close()


async def test_files_go_with_the_records_they_name(shard: Shard, thread: ThreadPoolExecutor) -> None:
    shard.put(*(sent(f"{number}") for number in range(1_000)))
    at = positions(shard)
    async with Built(shard, thread) as indexer:
        assert len(indexer.files) == 3
        indexer.drop_before(at["398"])
        assert len(indexer.files) == 3
        indexer.drop_before(at["399"])
        assert len(indexer.files) == 2
        assert found(indexer, "398") == []
        indexer.drop_before(shard.store.published_end)
        assert len(indexer.files) == 1
        assert found(indexer, "999") == [at["999"]]
    assert len(file_paths(shard.root / "index")) == 1


@pytest.mark.parametrize("name", params())
async def test_every_key_of_a_broker_s_directory_is_found(
    name: str, tmp_path: Path, clock: HandClock, thread: ThreadPoolExecutor
) -> None:
    """The index is made again from the log."""
    golden_dir()
    store = unpack(name, tmp_path)
    shard = Shard(store, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    async with Built(shard, thread, Shape(2_000, 8_000)) as indexer:
        looked_up = 0
        for unit in units(name):
            keys = [unit["uniqKey"], *unit["properties"].get("KEYS", "").split(" ")]
            for word in filter(None, keys):
                assert unit["physicalOffset"] in found(indexer, word, unit["topic"])
                looked_up += 1
        assert looked_up == summary(name)["index"]["keysLookedUp"]
    shard.crash()


@pytest.mark.parametrize("name", golden55.chosen("a-default", "b-timer-rocksdb", "g-config-v2"))
async def test_index_of_a_broker_with_tags_is_made_again_to_the_byte(
    name: str, tmp_path: Path, clock: HandClock, thread: ThreadPoolExecutor
) -> None:
    store = golden55.unpack(name, tmp_path)
    (brokers,) = file_paths(store / "index")
    written = brokers.read_bytes()
    shard = Shard(store, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    async with Built(shard, thread, Shape(2_000, 8_000)) as indexer:
        assert len(found(indexer, tag_word("tag"), f"D{name[0]}_Normal")) == 60
    (ours,) = file_paths(store / "index")
    assert ours.read_bytes() == written
    shard.crash()
