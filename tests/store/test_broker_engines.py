"""State that a broker keeps in RocksDB or for POP: an import takes it over, and so does a store on its directory."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2
from duetime_core.ondisk.pops import outstanding
from duetime_core.testing import FakeClock
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_store.offline.transfer import import_directory

from tests.format import golden55
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

    async def receive(self, group: str, topic: str, queues: int, **options: Any) -> list[consumer_pb2.LeasedMessage]:
        numbers = [consumer_pb2.QueueNumber(queue=n, shard_queue=n) for n in range(queues)]
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


@pytest.fixture(params=golden55.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str, tmp_path: Path) -> Path:
    found = golden55.unpack(name, tmp_path)
    # Entries of tags are checked elsewhere.
    shutil.rmtree(found / "index")
    for queue in (found / "consumequeue").glob("%LMQ*"):
        shutil.rmtree(queue)
    return found


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
        assert ids(await store.receive(committed[0]["id"], topic, 4)) == dict.fromkeys(rest, 1)
        assert ids(await store.receive(group, topic, 4)) == dict.fromkeys(fresh, 1)
        await store.clock.advance(visible_at_ms - store.clock.now_ms() - 1)
        assert not popped & ids(await store.receive(group, topic, 4)).keys()
        await store.clock.advance(1)
        assert ids(await store.receive(group, topic, 4)) == dict.fromkeys(popped, 2)
        await store.again()
        assert not ids(await store.receive(group, topic, 4))
        kinds = {line["topic"]: line["state"] for line in golden55.lines(name, "topic") if "error" not in line}
        assert {topic: store.node.store.queues.counts.types.get(topic) for topic in kinds} == kinds
