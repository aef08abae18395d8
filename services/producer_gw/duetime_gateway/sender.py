"""Sends: from the request's bytes to the records under way in each shard, and from there to the results."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote

from duetime.v1 import gateway_pb2, message_pb2, store_pb2
from duetime_core import record
from duetime_core.calls import fault_of
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, Unavailable, Violation
from google.protobuf.message import DecodeError

from duetime_gateway.admission import check_send
from duetime_gateway.batcher import PUT_BYTES_MAX, Stored
from duetime_gateway.encoding import Batch, Encoder, PlainRequest
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing import Route
from duetime_gateway.shards import UNAVAILABLE, Shards
from duetime_gateway.topics import Topics

_DUPLICATE = store_pb2.PUT_STATUS_DUPLICATE
_NO_HOST = record.host_bytes("127.0.0.1", 0)


class Sending:
    """One request whose records are under way."""

    def __init__(self, request: Batch | PlainRequest, size: int, metrics: GatewayMetrics) -> None:
        self._request = request
        self._size = size
        self._metrics = metrics
        # Shard, which messages, and what becomes of them.
        self._parts: list[tuple[int, Sequence[int], asyncio.Future[Stored] | DueTimeError]] = []

    def add(self, shard: int, indices: Sequence[int], stored: "asyncio.Future[Stored] | DueTimeError") -> None:
        """`indices`: of the part's messages; those of a plain request are known by their place."""
        self._parts.append((shard, indices, stored))

    def cancel(self) -> None:
        """Takes out what still waits; what is in a put may be stored or not."""
        for _, _, stored in self._parts:
            if not isinstance(stored, DueTimeError):
                stored.cancel()

    async def response(self) -> bytes:
        """The SendResponse, once every shard has answered or failed."""
        answers: list[Stored | DueTimeError] = []
        try:
            for _, _, stored in self._parts:
                try:
                    answers.append(stored if isinstance(stored, DueTimeError) else await stored)
                except DueTimeError as error:
                    answers.append(error)
        finally:
            self.cancel()
        request = self._request
        if isinstance(request, Batch):
            return self._respond(request, answers)
        columns = [
            (answer.queue_offsets, answer.due_at_ms)
            for answer in answers
            if isinstance(answer, Stored) and answer.all_stored
        ]
        if len(columns) < len(answers):
            return self._respond(self._opened(request), answers)
        self._metrics.sent(self._size, request.count, [], 0)
        return request.response(columns)

    def _opened(self, request: PlainRequest) -> Batch:
        """A plain request whose results are not: what is known of each message."""
        batch = Batch([message_pb2.Message()] * request.count, 0, b"")
        batch.ids, batch.queues, batch.levels, parts = request.columns()
        self._parts = [
            (shard, [index for index, part in enumerate(parts) if part == number], stored)
            for number, (shard, _, stored) in enumerate(self._parts)
        ]
        return batch

    def _respond(self, batch: Batch, answers: list[Stored | DueTimeError]) -> bytes:
        count = len(batch.messages)
        shards, offsets, dues = [0] * count, [-1] * count, [0] * count
        faults = {index: fault_of(error) for index, error in batch.faults.items()}
        duplicates: set[int] = set()
        for (shard, indices, _), answer in zip(self._parts, answers, strict=True):
            if isinstance(answer, DueTimeError):
                fault = fault_of(answer)
                faults.update((index, fault) for index in indices)
                continue
            for index, offset in zip(indices, answer.queue_offsets, strict=True):
                offsets[index] = offset
                shards[index] = shard
            for index, due_at_ms in zip(indices, answer.due_at_ms, strict=False):
                dues[index] = due_at_ms
            faults.update((indices[at], fault) for at, fault in answer.faults.items())
            for at, queue in answer.duplicate_queues.items():
                route = batch.renumbered.get(indices[at])
                batch.queues[indices[at]] = route.queue_at(shard, queue) if route else queue
            if answer.statuses:
                duplicates.update(
                    index for index, status in zip(indices, answer.statuses, strict=True) if status == _DUPLICATE
                )
        self._metrics.sent(self._size, count, [fault.reason for fault in faults.values()], len(duplicates))
        return _compose(batch, shards, offsets, dues, faults, duplicates).SerializeToString()


def _compose(
    batch: Batch,
    shards: Sequence[int],
    offsets: Sequence[int],
    dues: Sequence[int],
    faults: Mapping[int, message_pb2.Fault],
    duplicates: set[int],
) -> gateway_pb2.SendResponse:
    """The results one by one."""
    response = gateway_pb2.SendResponse()
    add = response.results.add
    for message_id, shard, queue, offset, level, due_at_ms in zip(
        batch.ids, shards, batch.queues, offsets, batch.levels, dues, strict=True
    ):
        result = add()
        result.message_id = message_id
        # A message without an offset has a fault, and nothing but its id means anything.
        if offset >= 0:
            result.queue = queue
            result.offset = offset
            if shard:
                result.shard = shard
            if level:
                result.delay_level = level
                result.deliver_at_ms = due_at_ms
    for index, level in batch.requested_levels.items():
        if index not in faults:
            response.results[index].requested_level = level
    for index in duplicates:
        response.results[index].duplicate = True
    for index, fault in faults.items():
        response.results[index].fault.CopyFrom(fault)
        # The id of a message that was refused for its form is its sender's, as far as it has one.
        response.results[index].message_id = batch.ids[index] or batch.messages[index].id
    return response


class Sender:
    """Takes Send requests."""

    def __init__(
        self, topics: Topics, shards: Shards, encoder: Encoder, clock: Clock, metrics: GatewayMetrics, timeout_ms: int
    ) -> None:
        self._topics = topics
        self._shards = shards
        self._encoder = encoder
        self._clock = clock
        self._metrics = metrics
        self._timeout_ms = timeout_ms

    async def begin(self, data: bytes, peer: str, remaining_ms: float | None, order: object | None = None) -> Sending:
        """Admits, routes and encodes the messages, and hands their records to the shards.

        `remaining_ms` is the caller's deadline. Requests with the same `order` are stored in the order in which
        they were begun, as far as they are stored.

        Raises:
            InvalidArgument: the request as a whole is no good. Anything less is a fault in the results.
        """
        timeout_ms = min(remaining_ms, self._timeout_ms) if remaining_ms is not None else self._timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        host, now_ms = born_host(peer), self._clock.now_ms()
        plain = self._encoder.take_plain(data, self._topics.routes, now_ms, host)
        if plain is not None:
            sending = Sending(plain, len(data), self._metrics)
            for shard, records, count in plain.parts:
                sending.add(shard, (), self._submit(shard, records, count, plain.retry, deadline_ms, order))
            return sending
        request = _parse(data)
        check_send(len(request.messages), len(data))
        batch = Batch(request.messages, now_ms, host)
        routes = await self._routes({message.topic for message in batch.messages})
        self._encoder.encode(batch, range(len(batch.messages)), routes)
        if batch.unready:
            await self._make_ready(batch, routes)
        sending = Sending(batch, len(data), self._metrics)
        for shard, group in batch.groups.items():
            chunks = _chunks(group.records)
            # Parts of one request must not overtake each other either.
            order_of_parts = order or (batch if len(chunks) > 1 else None)
            for first, end in chunks:
                records = b"".join(group.records[first:end])
                stored = self._submit(shard, records, end - first, request.retry, deadline_ms, order_of_parts)
                sending.add(shard, group.indices[first:end], stored)
        return sending

    async def _routes(self, names: set[str]) -> Mapping[str, Route | DueTimeError]:
        known = self._topics.routes
        if names <= known.keys():
            return known
        return await self._topics.routes_to_write(names)

    async def _make_ready(self, batch: Batch, routes: Mapping[str, Route | DueTimeError]) -> None:
        """Reaches the shards that are not known yet, tells them of their topics, and encodes what waited for that."""
        waiting, batch.unready = batch.unready, {}
        answers = await asyncio.gather(*(self._ready(routes[topic], shard) for topic, shard in waiting))
        again: list[int] = []
        for indices, error in zip(waiting.values(), answers, strict=True):
            if error is None:
                again.extend(indices)
            else:
                batch.faults.update((index, error) for index in indices)
        if again:
            # A shard's records keep the request's order, also those that were ready at once.
            ready = [index for group in batch.groups.values() for index in group.indices]
            batch.groups.clear()
            self._encoder.encode(batch, sorted(ready + again), routes)
        for (topic, shard), indices in batch.unready.items():
            error = Unavailable(f"shard {shard} was lost before it took topic {topic}", reason=UNAVAILABLE)
            batch.faults.update((index, error) for index in indices)

    async def _ready(self, route: Route | DueTimeError, shard: int) -> DueTimeError | None:
        assert isinstance(route, Route), "a message without a route has a fault"
        try:
            await self._shards.get(shard).ready(route)
        except DueTimeError as error:
            return error
        return None

    def _submit(
        self, shard: int, records: bytes, count: int, retried: bool, deadline_ms: float, order: object | None
    ) -> "asyncio.Future[Stored] | DueTimeError":
        batcher = self._shards.get(shard).batcher
        try:
            return batcher.submit(records, count, retried=retried, deadline_ms=deadline_ms, order=order)
        except DueTimeError as error:
            return error


def _parse(data: bytes) -> gateway_pb2.SendRequest:
    try:
        return gateway_pb2.SendRequest.FromString(data)
    except DecodeError as error:
        raise InvalidArgument([Violation("messages", f"{len(data)} bytes are no SendRequest: {error}")]) from error


def _chunks(records: Sequence[bytes]) -> list[tuple[int, int]]:
    """[first, end) of the parts of a group that fit into one put each; one record may be larger than that."""
    if sum(map(len, records)) <= PUT_BYTES_MAX:
        return [(0, len(records))]
    chunks: list[tuple[int, int]] = []
    first = size = 0
    for at, one in enumerate(records):
        if size and size + len(one) > PUT_BYTES_MAX:
            chunks.append((first, at))
            first, size = at, 0
        size += len(one)
    return [*chunks, (first, len(records))]


@lru_cache(4_096)
def born_host(peer: str) -> bytes:
    """Host bytes of a gRPC peer, `ipv4:1.2.3.4:5` or `ipv6:[::1]:5`; 127.0.0.1:0 for what has no address."""
    kind, _, rest = peer.partition(":")
    address, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        return _NO_HOST
    try:
        return record.host_bytes(address.strip("[]"), int(port))
    except ValueError:
        return _NO_HOST
