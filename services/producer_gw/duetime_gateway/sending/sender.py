"""Sends: from the request's bytes to the records under way in each shard, and from there to the results."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from urllib.parse import unquote

from duetime.v1 import gateway_pb2, message_pb2, store_pb2
from duetime_core.calls import fault_of
from duetime_core.clock import Clock, SystemClock, turn
from duetime_core.decoding import decode
from duetime_core.errors import DueTimeError, Overloaded, Unavailable
from duetime_core.room import Reservation, Room
from duetime_format import limits, record
from duetime_format.limits import ID_CHARS_MAX

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing.topics import Topics, not_made
from duetime_gateway.sending.admission import check_send
from duetime_gateway.sending.encoding import Batch, Encoder, PlainRequest
from duetime_gateway.shards.batcher import PUT_BYTES_MAX, Stored
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.shard import UNAVAILABLE, Shards

# After this share of the time that a Send has it waits no longer for new topics to be made, and after this one no more
# for stores to be told of those that were: the rest of its messages are stored.
MADE_BY, TOLD_BY = 0.5, 0.75

# New topics of a request that are made and written to at once: each costs a gateway and its store some 50 us in one go.
NEW_AT_ONCE = 64
REST_S_MAX = 0.5
# Messages that are encoded between two looks at the clock, and how long they hold the loop together.
STEP_MESSAGES, STEP_S = 32, 0.002

# Of the processor, also where everything else is told a fake one.
_CLOCK = SystemClock()
_DUPLICATE = store_pb2.PUT_STATUS_DUPLICATE
_NO_HOST = record.host_bytes("127.0.0.1", 0)
# So small a request needs no room of its own: the limit of calls in flight bounds those.
ROOMLESS_BYTES_MAX = 16 * 1024
LITTLE_BYTES = 1024 * 1024


def request_room(bytes_max: int) -> Room:
    """Room for requests in work: one of the largest at a time, and small ones beside it."""
    return Room(
        bytes_max, share=limits.REQUEST_BYTES_MAX, little=LITTLE_BYTES, what="requests", reason="REQUESTS_EXHAUSTED"
    )


class Sending:
    """One request whose records are under way."""

    def __init__(self, request: Batch | PlainRequest, size: int, metrics: GatewayMetrics) -> None:
        self._request = request
        self._size = size
        self._metrics = metrics
        # Gives back the room that the request has as long as it is in work.
        self.leave: Callable[[], object] | None = None
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
        leave, self.leave = self.leave, None
        if leave is not None:
            leave()

    async def settled(self) -> None:
        """Returns when every part so far is stored or not."""
        waiting = [stored for _, _, stored in self._parts if not isinstance(stored, DueTimeError)]
        if waiting:
            await asyncio.wait(waiting)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Around what hands over its parts: a caller that goes meanwhile takes them along."""
        try:
            yield
        except BaseException:
            self.cancel()
            raise

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
        for index, first in batch.repeats.items():
            # They have become of one message what has become of its first.
            for column in (shards, offsets, dues, batch.queues, batch.levels):
                column[index] = column[first]
            batch.requested_levels.pop(index, None)
            if first in batch.requested_levels:
                batch.requested_levels[index] = batch.requested_levels[first]
            if first in faults:
                faults[index] = faults[first]
            else:
                duplicates.add(index)
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
        # Of a message that was refused for its form it is its sender's, if it has one, and no longer than ids are.
        response.results[index].message_id = batch.ids[index] or batch.messages[index].id[:ID_CHARS_MAX]
    return response


class Sender:
    """Takes Send requests."""

    def __init__(
        self,
        topics: Topics,
        shards: Shards,
        encoder: Encoder,
        clock: Clock,
        metrics: GatewayMetrics,
        requests: Room,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._shards = shards
        self._encoder = encoder
        self._clock = clock
        self._metrics = metrics
        self._requests = requests
        self._timeout_ms = timeout_ms
        # Requests that are not large.
        self._little_count = 0

    async def begin(self, data: bytes, peer: str, remaining_ms: float | None, order: object | None = None) -> Sending:
        """Admits, routes and encodes the messages, and hands their records to the shards.

        `remaining_ms` is the caller's deadline. Requests with the same `order` are stored in the order in which
        they were begun, as far as they are stored.

        Raises:
            InvalidArgument: the request as a whole is no good. Anything less is a fault in the results.
            Overloaded: too many bytes of other requests are in work.
        """
        self._little_count += len(data) <= LITTLE_BYTES
        timeout_ms = min(remaining_ms, self._timeout_ms) if remaining_ms is not None else self._timeout_ms
        if not ROOMLESS_BYTES_MAX < len(data) <= limits.REQUEST_BYTES_MAX:
            return await self._begin(data, peer, timeout_ms, order)
        try:
            room = await self._requests.wait(peer, len(data), self._clock, timeout_ms)
        except Overloaded:
            self._metrics.requests_refused.inc()
            raise
        leave = partial(self._leave, room, time.perf_counter(), self._little_count)
        try:
            sending = await self._begin(data, peer, timeout_ms, order)
        except BaseException:
            room.close()
            raise
        sending.leave = leave
        return sending

    def _leave(self, room: Reservation, began_s: float, little_count: int) -> None:
        """Where others came while a large request was in work, they have as long without the next large one."""
        if room.size > LITTLE_BYTES and self._little_count > little_count:
            room.close_after(_rest_s(began_s))
        else:
            room.close()

    async def _begin(self, data: bytes, peer: str, timeout_ms: float, order: object | None) -> Sending:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        host, now_ms = born_host(peer), self._clock.now_ms()
        take = partial(self._encoder.take_plain, data, self._topics.routes, now_ms, host)
        plain = take()
        if plain is not None:
            return await self._begin_plain(plain, len(data), deadline_ms, order)
        request = decode(gateway_pb2.SendRequest.FromString, data)
        count = len(request.messages)
        check_send(count, len(data))
        batch = Batch(request.messages, now_ms, host)
        sending = Sending(batch, len(data), self._metrics)
        names = {message.topic for message in batch.messages}
        new_count = len(names - self._topics.routes.keys())
        routes = await self._routes(names, timeout_ms * MADE_BY)
        told_by_ms = deadline_ms - timeout_ms * (1 - TOLD_BY)
        if new_count <= NEW_AT_ONCE:
            plain = await self._encode(batch, range(count), routes, told_by_ms, take)
            if plain is not None:
                return await self._begin_plain(plain, len(data), deadline_ms, order)
            with sending.beginning():
                await self._submit_all(sending, batch, request.retry, deadline_ms, order)
            return sending
        with sending.beginning():
            for first in range(0, count, NEW_AT_ONCE):
                began_s, little_count = time.perf_counter(), self._little_count
                await self._encode(batch, range(count)[first : first + NEW_AT_ONCE], routes, told_by_ms)
                await self._submit_all(sending, batch, request.retry, deadline_ms, order or batch)
                await sending.settled()
                if self._little_count > little_count:
                    # Others that came have as long without this one, as far as there is time.
                    left_ms = told_by_ms - self._clock.monotonic_ms()
                    spare_s = left_ms / 1000 * NEW_AT_ONCE / (count - first) - (time.perf_counter() - began_s)
                    await _CLOCK.sleep(1000 * max(min(_rest_s(began_s), spare_s), 0.0))
        return sending

    async def _begin_plain(self, plain: PlainRequest, size: int, deadline_ms: float, order: object | None) -> Sending:
        sending = Sending(plain, size, self._metrics)
        parts = plain.parts
        # Parts of one request must not overtake each other either.
        order_of_parts = order or (plain if len(parts) > 1 else None)
        with sending.beginning():
            for number, (shard, count) in enumerate(parts):
                if number:
                    # Records of a large request are written in steps, and others have theirs in between.
                    await turn()
                records = plain.records(number)
                sending.add(shard, (), self._submit(shard, records, count, plain.retry, deadline_ms, order_of_parts))
        return sending

    async def _encode(
        self,
        batch: Batch,
        indices: Sequence[int],
        routes: Mapping[str, Route | DueTimeError],
        told_by_ms: float,
        take: Callable[[], PlainRequest | None] | None = None,
    ) -> PlainRequest | None:
        """Encodes these messages; shards are told of their topics as far as need be. Or the whole request, if it is
        plain once that is done: it then costs a fraction of the time."""
        await self._encode_in_steps(batch, indices, routes)
        if batch.unready:
            untold = await self._tell(batch, routes, told_by_ms - self._clock.monotonic_ms())
            plain = take() if take is not None and not untold else None
            if plain is not None:
                return plain
            await self._encode_again(batch, routes, untold)
        return None

    async def _submit_all(
        self, sending: Sending, batch: Batch, retried: bool, deadline_ms: float, order: object | None
    ) -> None:
        """Hands what is encoded to the shards."""
        for shard, group in batch.groups.items():
            chunks = _chunks(group.records)
            # Parts of one request must not overtake each other either.
            order_of_parts = order or (batch if len(chunks) > 1 else None)
            for first, end in chunks:
                if first:
                    await turn()
                records = b"".join(group.records[first:end])
                stored = self._submit(shard, records, end - first, retried, deadline_ms, order_of_parts)
                sending.add(shard, group.indices[first:end], stored)
        batch.groups.clear()

    async def _routes(self, names: set[str], wait_ms: float) -> Mapping[str, Route | DueTimeError]:
        known = self._topics.routes
        if names <= known.keys():
            return known
        return await self._topics.routes_to_write(names, wait_ms)

    async def _tell(
        self, batch: Batch, routes: Mapping[str, Route | DueTimeError], wait_ms: float
    ) -> dict[tuple[str, int], DueTimeError]:
        """Reaches the shards that are not known yet, and tells them of their topics. Which were not told, and why."""
        topics: dict[int, list[str]] = {}
        for topic, shard in batch.unready:
            topics.setdefault(shard, []).append(topic)
        told = await asyncio.gather(
            *(self._ready(shard, [routes[name] for name in names], wait_ms) for shard, names in topics.items())
        )
        answers = ((shard, *answer) for shard, one in zip(topics, told, strict=True) for answer in one)
        return {(route.topic, shard): error for shard, route, error in answers if error is not None}

    async def _encode_in_steps(
        self, batch: Batch, indices: Sequence[int], routes: Mapping[str, Route | DueTimeError]
    ) -> None:
        """Messages can be dear, with hundreds of properties each: others have their turn between some of them."""
        began_s = time.perf_counter()
        for first in range(0, len(indices), STEP_MESSAGES):
            if first and time.perf_counter() - began_s > STEP_S:
                await turn()
                began_s = time.perf_counter()
            self._encoder.encode(batch, indices[first : first + STEP_MESSAGES], routes)

    async def _encode_again(
        self, batch: Batch, routes: Mapping[str, Route | DueTimeError], untold: Mapping[tuple[str, int], DueTimeError]
    ) -> None:
        """Encodes what waited for its shard to be told of its topic, where it was."""
        waiting, batch.unready = batch.unready, {}
        again: list[int] = []
        for key, indices in waiting.items():
            error = untold.get(key)
            if error is None:
                again.extend(indices)
            else:
                batch.faults.update((index, error) for index in indices)
        if again:
            # A shard's records keep the request's order, also those that were ready at once.
            ready = [index for group in batch.groups.values() for index in group.indices]
            batch.groups.clear()
            await self._encode_in_steps(batch, sorted(ready + again), routes)
        for (topic, shard), indices in batch.unready.items():
            error = Unavailable(f"shard {shard} was lost before it took topic {topic}", reason=UNAVAILABLE)
            batch.faults.update((index, error) for index in indices)

    async def _ready(
        self, shard: int, routes: Sequence[Route | DueTimeError], wait_ms: float
    ) -> list[tuple[Route, DueTimeError | None]]:
        """Of each route why the shard does not know its topic; None: it does."""
        asked = [route for route in routes if isinstance(route, Route)]
        assert len(asked) == len(routes), "a message without a route has a fault"
        try:
            told = await self._shards.get(shard).all_ready(asked, wait_ms)
        except DueTimeError as error:
            return [(route, error) for route in asked]
        return [
            (route, None if shard in route.store_hosts else told.get(route) or not_made(route.topic, wait_ms))
            for route in asked
        ]

    def _submit(
        self, shard: int, records: bytes, count: int, retried: bool, deadline_ms: float, order: object | None
    ) -> "asyncio.Future[Stored] | DueTimeError":
        batcher = self._shards.get(shard).batcher
        try:
            return batcher.submit(records, count, retried=retried, deadline_ms=deadline_ms, order=order)
        except DueTimeError as error:
            return error


def _rest_s(began_s: float) -> float:
    """As long as the work took; a store that is slow to answer is no work."""
    return min(time.perf_counter() - began_s, REST_S_MAX)


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
