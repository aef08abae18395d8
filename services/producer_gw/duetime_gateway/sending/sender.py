"""Sends: from a request to records being stored by each shard."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import cast

from duetime_core.clock import Clock, SystemClock, turn
from duetime_core.errors import DueTimeError, Overloaded
from duetime_core.limits.room import Reservation, Room
from duetime_format import limits
from duetime_format.admission import is_delayed

from duetime_gateway.access.grants import Access, Kind, Right
from duetime_gateway.errors import shard_unavailable
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.sending.drafts import Caller, Drafts, PackedRequest, Request, WholeDrafts
from duetime_gateway.sending.encoding import DraftBatch, Encoder, RecordGroup
from duetime_gateway.sending.lites import LiteTopicAdmitter
from duetime_gateway.sending.outcomes import InFlightRequest
from duetime_gateway.sending.permitted import PermittedRoutes, faults_of, tell_refused
from duetime_gateway.sending.whole import check_batch, check_send
from duetime_gateway.shards.batcher import PUT_BYTES_MAX, Batcher, PutResult
from duetime_gateway.shards.contract import replacements
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.shards import Shards

# Fractions of a request's time: new topics must be created by the first, and known to the stores by the second. The
# messages of other topics are stored.
MADE_BY, ANNOUNCED_BY = 0.5, 0.75
# Fraction of a request's time by which the producer group of half messages must be known.
KNOWN_BY = 0.4

# New topics that a request creates and writes to at a time: each costs the gateway and its store some 50 us at a
# stretch.
NEW_AT_ONCE = 64
REST_S_MAX = 0.5
# Messages encoded between checks of the time, and the longest time on the event loop.
STEP_MESSAGES, STEP_S = 32, 0.002

# Measures processor time, so it is never a test's clock.
_CLOCK = SystemClock()
# Requests up to this size reserve no capacity: the limit of calls in flight bounds them.
ROOMLESS_BYTES_MAX = 16 * 1024
LITTLE_BYTES = 1024 * 1024


# Returns the properties shared by the half messages of a request, within a time in ms, once the request is decoded;
# raises the error of the whole request.
Halves = Callable[[float], Awaitable[bytes]]


def costs_of(drafts: Drafts, access: Access) -> dict[str, tuple[int, int, int, int]]:
    """As `PackedRequest.costs`, for topics that the caller may send to: others do not use up a topic's quota."""
    allowed = {name for name in drafts.topics() if access.may(Right.SEND, Kind.TOPIC, name)}
    costs: dict[str, tuple[int, int, int, int]] = {}
    for index in range(len(drafts)):
        draft = drafts[index]
        if draft.topic not in allowed:
            continue
        size, waits = len(draft.body), is_delayed(draft)
        count, total, pending, pending_size = costs.get(draft.topic, (0, 0, 0, 0))
        costs[draft.topic] = count + 1, total + size, pending + waits, pending_size + size * waits
    return costs


def request_room(bytes_max: int) -> Room:
    """Capacity for requests in progress: one of the largest at a time, and small ones beside it."""
    return Room(
        bytes_max, share=limits.REQUEST_BYTES_MAX, little=LITTLE_BYTES, what="requests", reason="REQUESTS_EXHAUSTED"
    )


class Sender:
    """Sends requests of any protocol."""

    def __init__(
        self,
        topics: TopicRegistry,
        shards: Shards,
        encoder: Encoder,
        clock: Clock,
        metrics: GatewayMetrics,
        requests: Room,
        quotas: Quotas,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._shards = shards
        self.encoder = encoder
        self._clock = clock
        self._metrics = metrics
        self._requests = requests
        self._quotas = quotas
        self._timeout_ms = timeout_ms
        self._permitted = PermittedRoutes(topics)
        self._lites = LiteTopicAdmitter(shards, encoder, clock)
        # Number of requests so far that are not large.
        self._little_count = 0

    async def begin(
        self, request: Request, caller: Caller, order: object | None = None, halves: Halves | None = None
    ) -> InFlightRequest:
        """Admits, routes and encodes the messages, and submits their records to the shards.

        Requests with the same `order` are stored in the order of these calls, as far as they are stored. With `halves`
        they are half messages.

        Raises:
            InvalidArgument: the request as a whole is rejected. Other errors are faults of single messages.
            Overloaded: other requests in progress have too many bytes, or a quota is used up.
        """
        size, timeout_ms = request.size, float(self._timeout_ms)
        if caller.remaining_ms is not None:
            timeout_ms = min(caller.remaining_ms, timeout_ms)
        self._little_count += size <= LITTLE_BYTES
        if not ROOMLESS_BYTES_MAX < size <= limits.REQUEST_BYTES_MAX:
            return await self._begin(request, caller, timeout_ms, order, halves)
        try:
            room = await self._requests.wait(caller.sharer, size, self._clock, timeout_ms)
        except Overloaded:
            self._metrics.requests_refused.inc()
            raise
        leave = partial(self._leave, room, time.perf_counter(), self._little_count)
        try:
            sending = await self._begin(request, caller, timeout_ms, order, halves)
        except BaseException:
            room.close()
            raise
        sending.leave = leave
        return sending

    def _leave(self, room: Reservation, began_s: float, little_count: int) -> None:
        """Releases capacity. If small requests came during a large one, the next large one waits as long as it took."""
        if room.size > LITTLE_BYTES and self._little_count > little_count:
            room.close_after(_rest_s(began_s))
        else:
            room.close()

    async def _begin(
        self, request: Request, caller: Caller, timeout_ms: float, order: object | None, halves: Halves | None
    ) -> InFlightRequest:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        now_ms, size = self._clock.now_ms(), request.size
        permitted = self._permitted.routes(caller.access)
        pack = partial(self.encoder.pack, request, permitted, now_ms, caller.host)
        packed = pack()
        if packed is not None:
            if self._quotas.active:
                self._quotas.send(caller.user, caller.peer, packed.count, size, packed.costs)
            return await self._begin_packed(packed, size, deadline_ms, order, caller, is_batch=request.is_batch)
        drafts = request.drafts()
        count = len(drafts)
        check_send(count, size)
        if self._quotas.active:
            self._quotas.send(caller.user, caller.peer, count, size, partial(costs_of, drafts, caller.access))
        half = None if halves is None else await halves(timeout_ms * KNOWN_BY)
        batch = DraftBatch(drafts, now_ms, caller.host, half)
        sending = InFlightRequest(batch, size, self._metrics)
        names = drafts.topics()
        new_count = sum(name not in self._topics.routes for name in names)
        routes = await self._routes(names, caller, timeout_ms * MADE_BY)
        self._permitted.learn(caller.access, names)
        announced_by_ms = deadline_ms - timeout_ms * (1 - ANNOUNCED_BY)
        if not request.is_batch:
            tell_refused({name: routes.get(name) for name in names})
            await self._lites.admit(batch, routes, caller.sharer, announced_by_ms)
        if request.is_batch:
            packed = await self._encode_whole(cast("WholeDrafts", drafts), batch, routes, announced_by_ms, pack)
            if packed is not None:
                return await self._begin_packed(packed, size, deadline_ms, order, caller, is_batch=True)
            self._submit_whole(sending, batch, deadline_ms)
            return sending
        if new_count <= NEW_AT_ONCE:
            packed = await self.encode(batch, range(count), routes, announced_by_ms, pack)
            if packed is not None:
                return await self._begin_packed(packed, size, deadline_ms, order, caller)
            with sending:
                await self._submit_all(sending, batch, deadline_ms, order, caller)
            return sending
        with sending:
            for first in range(0, count, NEW_AT_ONCE):
                began_s, little_count = time.perf_counter(), self._little_count
                await self.encode(batch, range(count)[first : first + NEW_AT_ONCE], routes, announced_by_ms)
                await self._submit_all(sending, batch, deadline_ms, order or batch, caller)
                await sending.settled()
                if self._little_count > little_count:
                    # Small requests that arrived get as much time as this step took, as far as the deadline allows.
                    left_ms = announced_by_ms - self._clock.monotonic_ms()
                    spare_s = left_ms / 1000 * NEW_AT_ONCE / (count - first) - (time.perf_counter() - began_s)
                    await _CLOCK.sleep(1000 * max(min(_rest_s(began_s), spare_s), 0.0))
        return sending

    async def _encode_whole(
        self,
        drafts: WholeDrafts,
        batch: DraftBatch,
        routes: Mapping[str, Route | DueTimeError],
        announced_by_ms: float,
        pack: Callable[[], PackedRequest | None],
    ) -> PackedRequest | None:
        """As `_encode`, for a batch stored all or none.

        Raises:
            DueTimeError: the batch is rejected.
        """
        topic, first = next(iter(drafts.topics())), drafts[0]
        route = routes[topic]
        if isinstance(route, Route):
            self.encoder.choose_one(batch, first, route)
        packed = await self.encode(batch, range(len(drafts)), routes, announced_by_ms, pack)
        if packed is None:
            is_lite = isinstance(route, Route) and route.is_lite
            check_batch(batch, drafts.violations(is_lite=is_lite))
        return packed

    def _submit_whole(self, sending: InFlightRequest, batch: DraftBatch, deadline_ms: float) -> None:
        """Submits an encoded batch, which is one group, to its shard."""
        for number, group in batch.groups.items():
            shard, records = self._shards.get(number), group.records
            stored = _submit(shard.batcher, b"".join(records), len(records), deadline_ms, None, is_batch=True)
            sending.add(number, group.indices, stored)
        batch.clear_groups()

    async def _begin_packed(
        self,
        packed: PackedRequest,
        size: int,
        deadline_ms: float,
        order: object | None,
        caller: Caller,
        *,
        is_batch: bool = False,
    ) -> InFlightRequest:
        sending = InFlightRequest(packed, size, self._metrics)
        parts = packed.parts
        # Parts of one request must stay in order too.
        order_of_parts = order or (packed if len(parts) > 1 else None)
        with sending:
            for number, (shard, count) in enumerate(parts):
                if number:
                    # Large requests are written in steps; other requests run in between.
                    await turn()
                records = packed.records(number)
                found = self._shards.get(shard)
                batcher = found.preparer if packed.is_half else found.batcher
                stored = _submit(
                    batcher,
                    records,
                    count,
                    deadline_ms,
                    order_of_parts,
                    caller.sharer,
                    is_batch=is_batch,
                )
                sending.add(shard, (), stored)
        return sending

    async def encode(
        self,
        batch: DraftBatch,
        indices: Sequence[int],
        routes: Mapping[str, Route | DueTimeError],
        announced_by_ms: float,
        pack: Callable[[], PackedRequest | None] | None = None,
    ) -> PackedRequest | None:
        """Encodes these messages, and announces their topics to shards without them. Then tries `pack` again: if it
        succeeds, returns the whole request packed, which costs far less time."""
        await self._encode_in_steps(batch, indices, routes)
        if batch.unready:
            errors = await self._announce(batch, routes, announced_by_ms - self._clock.monotonic_ms())
            packed = pack() if pack is not None and not errors else None
            if packed is not None:
                return packed
            await self._encode_again(batch, routes, errors)
        return None

    async def _submit_all(
        self,
        sending: InFlightRequest,
        batch: DraftBatch,
        deadline_ms: float,
        order: object | None,
        caller: Caller,
    ) -> None:
        """Submits encoded records to the shards."""
        for shard, group in batch.groups.items():
            found = self._shards.get(shard)
            batcher = found.batcher if batch.half is None else found.preparer
            await self._submit_group(sending, batcher, group, group.records, deadline_ms, order, caller)
        for shard, group in batch.replacing.items():
            batcher = self._shards.get(shard).replacer
            records = replacements(group.records, group.max_waits_ms)
            await self._submit_group(sending, batcher, group, records, deadline_ms, order, caller)
        batch.clear_groups()

    async def _submit_group(
        self,
        sending: InFlightRequest,
        batcher: Batcher,
        group: RecordGroup,
        records: Sequence[bytes],
        deadline_ms: float,
        order: object | None,
        caller: Caller,
    ) -> None:
        chunks = _chunks(records, batcher.count_max)
        # Parts of one request must stay in order too.
        order_of_parts = order or (group if len(chunks) > 1 else None)
        for start, stop in chunks:
            if start:
                await turn()
            part = b"".join(records[start:stop])
            stored = _submit(batcher, part, stop - start, deadline_ms, order_of_parts, caller.sharer)
            sending.add(batcher.shard, group.indices[start:stop], stored)

    async def _routes(
        self, names: Collection[str], caller: Caller, wait_ms: float
    ) -> Mapping[str, Route | DueTimeError]:
        """The route of each topic, or the error: it has none, or the caller may not send to it."""
        known = self._topics.routes
        refused = faults_of(caller.access, names)
        if not refused and all(name in known for name in names):
            return known
        wanted = [name for name in names if name not in refused]
        return refused | await self._topics.routes_to_write(wanted, wait_ms, caller.sharer)

    async def _announce(
        self, batch: DraftBatch, routes: Mapping[str, Route | DueTimeError], wait_ms: float
    ) -> dict[tuple[str, int], DueTimeError]:
        """Announces topics to the shards without them. Returns the errors by topic and shard."""
        topics: dict[int, list[str]] = {}
        for topic, shard in batch.unready:
            topics.setdefault(shard, []).append(topic)
        answers = await asyncio.gather(
            *(self._ready(shard, [routes[name] for name in names], wait_ms) for shard, names in topics.items())
        )
        return {
            (route.topic, shard): error
            for shard, answer in zip(topics, answers, strict=True)
            for route, error in answer
            if error is not None
        }

    async def _encode_in_steps(
        self, batch: DraftBatch, indices: Sequence[int], routes: Mapping[str, Route | DueTimeError]
    ) -> None:
        """Encodes in steps: messages with hundreds of properties are slow, so other requests run after every few."""
        began_s = time.perf_counter()
        for first in range(0, len(indices), STEP_MESSAGES):
            if first and time.perf_counter() - began_s > STEP_S:
                await turn()
                began_s = time.perf_counter()
            self.encoder.encode(batch, indices[first : first + STEP_MESSAGES], routes)

    async def _encode_again(
        self,
        batch: DraftBatch,
        routes: Mapping[str, Route | DueTimeError],
        errors: Mapping[tuple[str, int], DueTimeError],
    ) -> None:
        """Encodes messages that waited for their shard to learn their topic, or notes the error."""
        waiting, batch.unready = batch.unready, {}
        again: list[int] = []
        for key, indices in waiting.items():
            error = errors.get(key)
            if error is None:
                again.extend(indices)
            else:
                batch.faults.update((index, error) for index in indices)
        if again:
            # A shard's records keep the request's order, including those that were ready at once.
            ready = [index for group in batch.all_groups() for index in group.indices]
            batch.clear_groups()
            await self._encode_in_steps(batch, sorted(ready + again), routes)
        for (topic, shard), indices in batch.unready.items():
            error = shard_unavailable(f"shard {shard} became unreachable before it accepted topic {topic}")
            batch.faults.update((index, error) for index in indices)

    async def _ready(
        self, shard: int, routes: Sequence[Route | DueTimeError], wait_ms: float
    ) -> list[tuple[Route, DueTimeError | None]]:
        """Each route with its error; None: the shard knows its topic."""
        asked = [route for route in routes if isinstance(route, Route)]
        assert len(asked) == len(routes), "a message without a route has a fault"
        try:
            return list((await self._shards.get(shard).all_ready(asked, wait_ms)).items())
        except DueTimeError as error:
            return [(route, error) for route in asked]


def _submit(
    batcher: Batcher,
    records: bytes,
    count: int,
    deadline_ms: float,
    order: object | None,
    caller: str = "",
    *,
    is_batch: bool = False,
) -> "asyncio.Future[PutResult] | DueTimeError":
    try:
        return batcher.submit(
            records,
            count,
            deadline_ms=deadline_ms,
            order=order,
            is_batch=is_batch,
            caller=caller,
        )
    except DueTimeError as error:
        return error


def _rest_s(began_s: float) -> float:
    """The duration of the work, limited: time spent waiting for a slow store is not work."""
    return min(time.perf_counter() - began_s, REST_S_MAX)


def _chunks(records: Sequence[bytes], count_max: int) -> list[tuple[int, int]]:
    """[start, stop) of the parts of a group, each small enough for one put; a single record may be larger."""
    if len(records) <= count_max and sum(map(len, records)) <= PUT_BYTES_MAX:
        return [(0, len(records))]
    chunks: list[tuple[int, int]] = []
    first = size = 0
    for at, one in enumerate(records):
        if size and (size + len(one) > PUT_BYTES_MAX or at - first == count_max):
            chunks.append((first, at))
            first, size = at, 0
        size += len(one)
    return [*chunks, (first, len(records))]
