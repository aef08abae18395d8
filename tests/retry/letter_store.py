"""Shards with dead letters, as a retry service sees them: the promises of stores, in memory."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from duetime.v1 import gateway_pb2, store_pb2
from duetime_core.errors import NotFound
from duetime_format import record
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record

GROUP = "billing"
DLQ, RETRY = "%DLQ%billing", "%RETRY%billing"
START_MS = 1_700_000_000_000


def dead(number: int, **properties: str) -> Record:
    """A dead letter as retry services write it, of a message that died `number` seconds after START_MS."""
    names = {
        "TAGS": "paid",
        "KEYS": f"key{number} all",
        "UNIQ_KEY": f"id{number}",
        "color": "red",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "AA",
        "DT_ORIGIN": f"3:{number + 70}",
        "DT_DEAD_REASON": "ATTEMPTS_EXHAUSTED",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "AA",
        "DT_ATTEMPTS": '{"attempts":[[1,5,6,"ValueError","no","t1"],[2,7,8,"TimeoutError","Bank is away","t2"]]}',
        **properties,
    }
    encoded = record.with_crc_mark(encode_properties({name: value for name, value in names.items() if value}))
    at_ms = START_MS + number * 1_000
    return Record(DLQ, 0, b"%d" % number, encoded, stored_at_ms=at_ms, reconsume_times=2, queue_offset=number)


@dataclass
class LetterStore:
    """`letters` by shard, which does not know the topic before it has one. Each has queue 0 of %DLQ%billing there;
    users number the shards in `order`."""

    letters: dict[int, list[Record]]
    order: list[int] = field(default_factory=list)
    gone: set[tuple[int, int]] = field(default_factory=set)
    copies: list[tuple[int, Record]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    ready: set[tuple[str, int]] = field(default_factory=set)
    # Set: puts and drops wait for it after they are done, as an answer on its way does.
    gate: asyncio.Event | None = None

    async def places(self, topic: str) -> list[tuple[int, int, int]]:
        assert topic.startswith("%DLQ%")
        return [(n, shard, 0) for n, shard in enumerate(self.order or self.letters)] if topic == DLQ else []

    async def ensure(self, topic: str, shard: int) -> None:
        self.ready.add((topic, shard))

    async def call(self, shard: int, method: str, request: Any) -> Any:
        self.calls.append(method)
        if not self.letters[shard]:
            raise NotFound(f"topic {DLQ} is not known to this shard", reason="TOPIC_NOT_FOUND")
        # As over a network: others have their turn.
        await asyncio.sleep(0)
        return await getattr(self, method)(shard, request)

    async def PullDeadLetters(self, shard: int, request: Any) -> store_pb2.PullDeadLettersResponse:
        letters = self.letters[shard]
        end = min(request.before_offset or len(letters), len(letters))
        offsets = [n for n in range(request.offset, end) if (shard, n) not in self.gone]
        if request.before_offset:
            chosen = offsets[-request.max_count :]
            next_offset = chosen[0] if len(chosen) < len(offsets) else request.offset
        else:
            chosen = offsets[: request.max_count]
            next_offset = offsets[len(chosen)] if len(chosen) < len(offsets) else len(letters)
        return store_pb2.PullDeadLettersResponse(
            records=b"".join(record.encode(letters[n]) for n in chosen),
            offsets=chosen,
            next_offset=next_offset,
            max_offset=len(letters),
        )

    async def SearchOffset(self, shard: int, request: Any) -> gateway_pb2.SearchOffsetResponse:
        since = [n for n, one in enumerate(self.letters[shard]) if one.stored_at_ms >= request.at_ms]
        return gateway_pb2.SearchOffsetResponse(offset=min(since, default=len(self.letters[shard])))

    async def Settle(self, shard: int, request: Any) -> store_pb2.SettleResponse:
        response, at = store_pb2.SettleResponse(), 0
        settles = {one.record: one.dead_letter for one in request.settles}
        index = 0
        while at < len(request.records):
            copy = record.decode(request.records, at)
            assert (copy.topic, settles[index].topic) == (RETRY, DLQ)
            assert (RETRY, shard) in self.ready
            at += copy.size
            taken = self._take(shard, settles[index].offset)
            response.statuses.append(store_pb2.PUT_STATUS_OK if taken else store_pb2.PUT_STATUS_SETTLED)
            if taken:
                self.copies.append((shard, copy))
            index += 1
        if self.gate is not None:
            await self.gate.wait()
        return response

    async def DropDeadLetters(self, shard: int, request: Any) -> store_pb2.DropDeadLettersResponse:
        return store_pb2.DropDeadLettersResponse(dropped=[self._take(shard, one.offset) for one in request.letters])

    def _take(self, shard: int, offset: int) -> bool:
        taken = (shard, offset) not in self.gone
        self.gone.add((shard, offset))
        return taken

    @property
    def copy_ids(self) -> list[str]:
        return ids(copy for _, copy in self.copies)


def ids(records: Iterable[Record]) -> list[str]:
    return [decode_properties(one.properties)["UNIQ_KEY"] for one in records]
