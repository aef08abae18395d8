"""Combines the shards' answers into one outcome per message."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from duetime_core.errors import DueTimeError, MessageEnded
from duetime_format.lanes import is_timer_lane
from duetime_format.limits import ID_CHARS_MAX

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.sending.drafts import DraftList, PackedRequest
from duetime_gateway.sending.encoding import DraftBatch
from duetime_gateway.shards.batcher import DUPLICATE, PutResult


@dataclass(slots=True)
class AllStored:
    """The outcome of a packed request with all messages stored, without details per message."""

    packed: PackedRequest
    # (queue offsets, due times or nothing, log positions of half messages) of each part.
    columns: list[tuple[Sequence[int], Sequence[int], Sequence[int]]]

    def response(self) -> bytes:
        """The encoded answer in the protocol of the face that packed the request."""
        return self.packed.response(self.columns)


@dataclass(frozen=True, slots=True)
class SendOutcomes:
    """The result of each message, in the request's order: columns with one value per message, and rare values by index.
    A message with a fault has only `ids`, and -1 in `offsets`."""

    ids: Sequence[str]
    shards: Sequence[int]
    # Queue of the topic, by its public number.
    queues: Sequence[int]
    # Offset in that queue or, for a delayed message, in its lane.
    offsets: Sequence[int]
    # Applied delay level; 0: none.
    levels: Sequence[int]
    # Unix milliseconds by the shard's clock; 0: not delayed.
    due_at_ms: Sequence[int]
    # Requested level, if above the highest.
    requested_levels: Mapping[int, int]
    # Already stored, by an earlier request or earlier in this one; the columns describe the first copy.
    duplicates: frozenset[int]
    faults: Mapping[int, DueTimeError]
    # 0: not delayed.
    lanes: Sequence[int]
    # Messages whose due time was past.
    past: frozenset[int]
    # Ids of the replaced messages.
    replaced: Mapping[int, str]
    # Log positions of half messages; their `offsets` are those of the half topic, `due_at_ms` their first check.
    positions: Sequence[int] = ()


class InFlightRequest:
    """One request whose records are being stored."""

    def __init__(self, request: DraftBatch | PackedRequest, size: int, metrics: GatewayMetrics) -> None:
        self._request = request
        self._size = size
        self._metrics = metrics
        # Releases the capacity held by the request.
        self.leave: Callable[[], object] | None = None
        # Shard, message indices, and the shard's pending answer.
        self._parts: list[tuple[int, Sequence[int], asyncio.Future[PutResult] | DueTimeError]] = []

    def add(self, shard: int, indices: Sequence[int], stored: "asyncio.Future[PutResult] | DueTimeError") -> None:
        """`indices`: the part's messages; empty for a packed request, which knows them itself."""
        self._parts.append((shard, indices, stored))

    def cancel(self) -> None:
        """Removes waiting records; those already in a put may or may not be stored."""
        for _, _, stored in self._parts:
            if not isinstance(stored, DueTimeError):
                stored.cancel()
        leave, self.leave = self.leave, None
        if leave is not None:
            leave()

    async def settled(self) -> None:
        """Returns when every part so far has finished."""
        waiting = [stored for _, _, stored in self._parts if not isinstance(stored, DueTimeError)]
        if waiting:
            await asyncio.wait(waiting)

    def __enter__(self) -> Self:
        """Guards the submission of parts: if the caller leaves meanwhile, they are removed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel()

    async def outcome(self) -> AllStored | SendOutcomes:
        """Returns once every shard has answered or failed."""
        answers: list[PutResult | DueTimeError] = []
        try:
            for _, _, stored in self._parts:
                try:
                    answers.append(stored if isinstance(stored, DueTimeError) else await stored)
                except DueTimeError as error:
                    answers.append(error)
        finally:
            self.cancel()
        request = self._request
        if isinstance(request, DraftBatch):
            return self._one_by_one(request, answers)
        columns = [
            (answer.queue_offsets, answer.due_at_ms, answer.positions)
            for answer in answers
            if isinstance(answer, PutResult) and answer.all_stored
        ]
        if len(columns) < len(answers):
            return self._one_by_one(self._unpacked(request), answers)
        self._count(request.count, [], 0, is_half=request.is_half)
        return AllStored(request, columns)

    def _count(self, count: int, reasons: list[str], duplicates: int, *, is_half: bool) -> None:
        if is_half:
            self._metrics.transactions.prepared(count, reasons, duplicates)
        else:
            self._metrics.sent(self._size, count, reasons, duplicates)

    def _unpacked(self, request: PackedRequest) -> DraftBatch:
        """The state of each message of a packed request."""
        ids, queues, levels, lanes, parts = request.columns()
        batch = DraftBatch(DraftList(()), 0, b"", b"" if request.is_half else None)
        batch.ids, batch.queues, batch.levels, batch.lanes = ids, queues, levels, lanes
        self._parts = [
            (shard, [index for index, part in enumerate(parts) if part == number], stored)
            for number, (shard, _, stored) in enumerate(self._parts)
        ]
        return batch

    def _one_by_one(self, batch: DraftBatch, answers: list[PutResult | DueTimeError]) -> SendOutcomes:
        count = len(batch.ids)
        shards, offsets, due_at_ms = [0] * count, [-1] * count, [0] * count
        positions = [-1] * count if batch.half is not None else []
        faults, duplicates, past = dict(batch.faults), set[int](), set[int]()
        replaced: dict[int, str] = {}
        for (shard, indices, _), answer in zip(self._parts, answers, strict=True):
            if isinstance(answer, DueTimeError):
                faults.update(dict.fromkeys(indices, answer))
                continue
            for index, offset in zip(indices, answer.queue_offsets, strict=True):
                offsets[index] = offset
                shards[index] = shard
            for index, at_ms in zip(indices, answer.due_at_ms, strict=False):
                due_at_ms[index] = at_ms
            if batch.half is not None:
                for index, position in zip(indices, answer.positions, strict=True):
                    positions[index] = position
            faults.update((indices[at], fault) for at, fault in answer.faults.items())
            past.update(indices[at] for at in answer.past)
            replaced.update((indices[at], one) for at, one in answer.replaced.items())
            for at, queue in answer.duplicate_queues.items():
                _note_queue(batch, indices[at], shard, queue)
            for at, lane in answer.lanes.items():
                _note_lane(batch, indices[at], lane)
            if answer.statuses:
                duplicates.update(
                    index for index, status in zip(indices, answer.statuses, strict=True) if status == DUPLICATE
                )
        faults.update(_ended_before_repeat(batch, replaced))
        for index, first in batch.repeats.items():
            if index in faults:
                continue
            # Copy the first message's result to its repeats.
            for column in (shards, offsets, due_at_ms, positions, batch.queues, batch.levels, batch.lanes):
                if column:
                    column[index] = column[first]
            if first in past:
                past.add(index)
            if first in replaced:
                replaced[index] = replaced[first]
            batch.requested_levels.pop(index, None)
            if first in batch.requested_levels:
                batch.requested_levels[index] = batch.requested_levels[first]
            if first in faults:
                faults[index] = faults[first]
            else:
                duplicates.add(index)
        for index in faults:
            # A rejected message keeps its sender's id, if any, cut to the length of ids.
            batch.ids[index] = batch.ids[index] or batch.drafts[index].id[:ID_CHARS_MAX]
        reasons = [fault.reason for fault in faults.values()]
        self._count(count, reasons, len(duplicates), is_half=batch.half is not None)
        requested = {index: level for index, level in batch.requested_levels.items() if index not in faults}
        return SendOutcomes(
            batch.ids,
            shards,
            batch.queues,
            offsets,
            batch.levels,
            due_at_ms,
            requested,
            frozenset(duplicates),
            faults,
            batch.lanes,
            frozenset(past - faults.keys()),
            replaced,
            positions,
        )


def _ended_before_repeat(batch: DraftBatch, replaced: Mapping[int, str]) -> dict[int, DueTimeError]:
    """Faults of messages that repeat one replaced earlier in the same request."""
    found: dict[int, DueTimeError] = {}
    if replaced and batch.repeats:
        # Keys are topic and id of the replaced message; the least of several indices counts.
        by_name = {(batch.drafts[index].topic, one): index for index, one in sorted(replaced.items(), reverse=True)}
        for index, first in batch.repeats.items():
            draft = batch.drafts[index]
            if first < by_name.get((draft.topic, draft.id), index) < index:
                found[index] = MessageEnded(draft.topic, draft.id, "REPLACED")
    return found


def _note_queue(batch: DraftBatch, index: int, shard: int, queue: int) -> None:
    """Sets the queue of a repeated message to the first one's, given by its number on the shard."""
    route = batch.renumbered.get(index)
    batch.queues[index] = route.queue_at(shard, queue) if route else queue
    batch.requested_levels.pop(index, None)


def _note_lane(batch: DraftBatch, index: int, lane: int) -> None:
    """Sets the lane of a message that replaces others, or of the one that it repeats."""
    batch.lanes[index] = lane
    batch.levels[index] = 0 if is_timer_lane(lane) else lane
