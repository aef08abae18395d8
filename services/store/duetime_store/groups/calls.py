"""The Store's calls about groups: translate in, call, translate out."""

from collections.abc import Callable, Sequence
from typing import Any

from duetime.v1 import consumer_pb2, leases_pb2, store_pb2
from duetime_core.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Violation, refuse
from duetime_core.telemetry.logs import sparing
from duetime_format import limits, receipts
from duetime_format.admission import lite_violations
from duetime_format.errors import within
from duetime_format.events import Letter
from duetime_format.names import lite_key

from duetime_store.groups import dead_letters
from duetime_store.groups.admin import GroupAdmin
from duetime_store.groups.fetch import FetchRequest, LeasedBatch
from duetime_store.groups.groups import EXPIRED, OK, GroupRegistry, OpenMessage
from duetime_store.groups.lapsing import expired
from duetime_store.groups.offsets import check_group
from duetime_store.groups.receiving import GroupReceiver
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import Filter, parsed
from duetime_store.reading.messages import stored_messages
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.settling import settle_records
from duetime_store.writing.staging import PutOutcome
from duetime_store.writing.store import Store

log = sparing()

HISTORY_BYTES_MAX = 16 * 1024
# Bytes of leased messages in one answer, not counting the last one; the caller asks again for the others.
LEASED_BYTES_MAX = limits.PULL_BYTES_DEFAULT
RECORDS = consumer_pb2.RECEIVE_ENCODING_RECORDS


class GroupCalls:
    """See proto/duetime/v1/store.proto for the promises of each call."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        groups: GroupRegistry,
        receiver: GroupReceiver,
        admin: GroupAdmin,
        metrics: StoreMetrics,
        turns: ScanTurns,
        *,
        shard: int,
    ) -> None:
        self.admin = admin
        self._turns = turns
        self._store = store
        self._reader = reader
        self._groups = groups
        self._receiver = receiver
        self.gates = receiver.gates
        self._metrics = metrics
        self._shard = shard

    def check_commits(self, group: str, topic: str) -> None:
        """Raises: FailedPrecondition: the group's offsets in the topic follow from its acknowledgements."""
        if self._groups.receives(group, topic):
            raise FailedPrecondition(
                f"group {group} receives {topic}: its offsets follow from its acknowledgements; reset it instead",
                reason="GROUP_RECEIVES",
            )

    async def receive(
        self, request: consumer_pb2.ReceiveRequest, peer: str, caller: str
    ) -> consumer_pb2.ReceiveResponse:
        given = await self._receiver.receive(await self._asked(request, peer, caller))
        response = consumer_pb2.ReceiveResponse()
        numbers = numbers_of(request)
        for one in given:
            self._add(response, one, numbers, request)
        self._metrics.messages_out.labels("receive").inc(sum(len(one.sizes) for one in given))
        self._metrics.bytes_out.labels("receive").inc(sum(len(one.records) for one in given))
        return response

    async def _asked(self, request: consumer_pb2.ReceiveRequest, peer: str, caller: str) -> FetchRequest:
        self.gates.learn(request.group, request.limits)
        return asked_of(request, peer, caller, await parsed(self._turns, request.tags, request.sql))

    def _add(
        self,
        response: consumer_pb2.ReceiveResponse,
        given: LeasedBatch,
        numbers: dict[tuple[bool, int], int],
        request: consumer_pb2.ReceiveRequest,
    ) -> None:
        key = given.lease.place.key
        queue = numbers[key.is_retry, key.queue]
        names = receipts.pack(self._shard, given.lease.id, given.offsets)
        if request.encoding == RECORDS:
            response.runs.add(
                topic=key.queue_topic,
                queue=queue,
                records=given.records,
                receipts=names,
                attempts=given.attempts,
                lease_ends_at_ms=given.until_ms,
            )
            return
        for message, name, attempt in zip(
            stored_messages(given.records, given.sizes), names, given.attempts, strict=True
        ):
            message.topic, message.queue = key.queue_topic if key.is_lite else key.topic, queue
            response.messages.add(message=message, receipt=name, attempt=attempt, lease_ends_at_ms=given.until_ms)

    async def await_messages(
        self, request: consumer_pb2.ReceiveRequest, peer: str, caller: str
    ) -> store_pb2.AwaitMessagesResponse:
        asked = await self._asked(request, peer, caller)
        return store_pb2.AwaitMessagesResponse(ready=await self._receiver.ready(asked))

    async def ack(self, request: consumer_pb2.AckRequest) -> consumer_pb2.AckResponse:
        _check(request.group, request.receipts, limits.RECEIPTS_MAX)
        statuses = self._groups.ack(request.group, request.receipts)
        await self._receiver.durable()
        return consumer_pb2.AckResponse(statuses=_as_statuses(statuses))

    async def change(self, request: consumer_pb2.ChangeInvisibleRequest) -> consumer_pb2.ChangeInvisibleResponse:
        _check(request.group, request.receipts, limits.RECEIPTS_MAX)
        if request.invisible_ms:
            _check_invisible(request.invisible_ms)
            if request.not_attempted:
                raise InvalidArgument([Violation("not_attempted", "is only for invisible_ms 0")])
        statuses = self._groups.change(
            request.group, request.receipts, request.invisible_ms, not_attempted=request.not_attempted
        )
        await self._receiver.durable()
        return consumer_pb2.ChangeInvisibleResponse(statuses=_as_statuses(statuses))

    async def get_leased(self, request: store_pb2.GetLeasedRequest) -> store_pb2.GetLeasedResponse:
        _check(request.group, request.receipts, limits.NACKS_MAX)
        response = store_pb2.GetLeasedResponse(now_ms=self._store.clock.now_ms())
        size = 0
        for receipt in request.receipts:
            if size >= LEASED_BYTES_MAX:
                break
            one = self._groups.open_one(request.group, receipt)
            leased = (
                store_pb2.LeasedRecord(status=one)  # type: ignore[arg-type]
                if isinstance(one, int)
                else self._leased(one, receipt)
            )
            response.leased.append(leased)
            size += leased.ByteSize()
        # The answer may rely on events that are not durable yet.
        await self._receiver.durable()
        return response

    async def take_exhausted(self, request: store_pb2.TakeExhaustedRequest) -> store_pb2.GetLeasedResponse:
        _check_invisible(request.invisible_ms)
        taken = await self._receiver.take_exhausted(
            min(max(request.max_count, 1), limits.NACKS_MAX),
            request.invisible_ms,
            min(max(request.wait_ms, 0), limits.WAIT_MS_MAX),
        )
        response = store_pb2.GetLeasedResponse(now_ms=self._store.clock.now_ms())
        size = 0
        for one in taken:
            if size >= LEASED_BYTES_MAX:
                self._groups.give_back(one.lease, [one.offset], response.now_ms, counted=False)
                continue
            (receipt,) = receipts.pack(self._shard, one.lease.id, [one.offset])
            leased = self._leased(one, receipt)
            if leased.status == OK and expired(one.place, leased.record, [len(leased.record)], response.now_ms):
                self._groups.lapse(one.place, [one.offset], one.lease.id)
            elif leased.status == OK:
                response.leased.append(leased)
                size += leased.ByteSize()
            else:
                # It is unreadable for good: nothing is left for a dead letter.
                self._groups.ack(one.place.key.group, [receipt])
                self._groups.lost_count += 1
        await self._receiver.durable()
        return response

    async def defer(self, request: store_pb2.DeferRequest) -> store_pb2.DeferResponse:
        _check(request.group, [one.receipt for one in request.deferrals], limits.NACKS_MAX)
        faults = []
        for one in request.deferrals:
            faults += within("deferrals.delay_ms", one.delay_ms, 0, limits.BACKOFF_MS_MAX)
            if len(one.history) > HISTORY_BYTES_MAX:
                text = f"{len(one.history)} bytes; the limit is {HISTORY_BYTES_MAX}"
                faults.append(Violation("deferrals.history", text))
        refuse(faults)
        deferrals = [(one.receipt, one.delay_ms, one.history) for one in request.deferrals]
        statuses, times = self._groups.defer(request.group, deferrals)
        await self._receiver.durable()
        return store_pb2.DeferResponse(statuses=statuses, deliver_at_ms=times)  # type: ignore[arg-type]

    def _leased(self, one: OpenMessage, receipt: bytes) -> store_pb2.LeasedRecord:
        """The leased record; EXPIRED if it can't be read any more."""
        key, hold, lease = one.place.key, one.hold, one.lease
        queue = self._store.queues.find(key.queue_topic, key.queue)
        try:
            data = self._reader.record_at(queue, one.offset)
        except (NotFound, DataLoss) as error:
            log.warning("leased message can't be read", **key._asdict(), offset=one.offset, error=str(error))
            return store_pb2.LeasedRecord(status=EXPIRED)  # type: ignore[arg-type]
        return store_pb2.LeasedRecord(
            receipt=receipt,
            group=key.group,
            record=data,
            attempt=hold.attempt,
            received_at_ms=lease.received_at_ms,
            expired=[moment for pair in hold.expired for moment in pair],
            history=hold.history,
            ordered=one.place.ordered,
            max_attempts=lease.max_attempts,
            topic=key.queue_topic,
            queue=key.queue,
            offset=one.offset,
        )

    async def describe(self, group: str) -> consumer_pb2.GroupDescription:
        if not group:
            return consumer_pb2.GroupDescription(pauses=self.gates.pauses.of(""))
        found = await self.admin.describe(group)
        # The answer may rely on events that are not durable yet.
        await self._receiver.durable()
        found.pauses.extend(self.gates.pauses.of(group, {queue.topic for queue in found.queues}))
        return found

    async def reset(self, request: consumer_pb2.ResetGroupRequest) -> consumer_pb2.ResetGroupResponse:
        response = await self.admin.reset(request)
        await self._receiver.durable()
        return response

    async def delete(self, request: consumer_pb2.DeleteGroupRequest, forget: Callable[[str], None]) -> None:
        await self.admin.delete(request, forget)
        await self.gates.forget(request.name)
        await self._receiver.durable()

    def settle(self, records: bytes, settles: Sequence[store_pb2.Settle]) -> PutOutcome:
        """Stages records together with the ends of leases and dead letters that they settle."""
        if len(settles) > limits.NACKS_MAX or any(settle.record < 0 for settle in settles):
            text = f"{len(settles)} of records from 0 on; the limit is {limits.NACKS_MAX}"
            raise InvalidArgument([Violation("settles", text)])
        found: dict[int, OpenMessage] = {}
        letters: dict[int, Letter] = {}
        ended: set[int] = set()
        for settle in settles:
            if settle.HasField("dead_letter"):
                letter = self._letter(settle.dead_letter)
                if letter in letters.values() or self._groups.gone.is_ending(letter):
                    ended.add(settle.record)
                else:
                    letters[settle.record] = letter
                continue
            one = self._groups.open_one(settle.group, settle.receipt)
            if isinstance(one, int) or any(
                one.place is other.place and one.offset == other.offset for other in found.values()
            ):
                ended.add(settle.record)
            else:
                found[settle.record] = one

        if letters:
            # A redriven copy is a new message; the copy of a leased one continues it.
            self._store.gate.check_send()

        def settle_one(index: int, topic: str, queue: int, offset: int) -> Any:
            if index in letters:
                return self._groups.settle_letter(letters[index], (topic, queue, offset))
            one = found.get(index)
            return None if one is None else self._groups.settle(one, (topic, queue, offset))

        return settle_records(self._store, records, ended, settle_one)

    # --- dead letters -----------------------------------------------------------------------------------------------

    async def pull_letters(self, request: store_pb2.PullDeadLettersRequest) -> store_pb2.PullDeadLettersResponse:
        dead_letters.check_topic(request.topic)
        queue = self._store.queues.find(request.topic, request.queue)
        count = min(max(request.max_count, 1), limits.PULL_COUNT_MAX)
        size = min(max(request.max_bytes, 1), limits.PULL_BYTES_MAX)
        reader, gone = self._reader, self._groups.gone
        if request.before_offset > 0:
            before = request.before_offset
            pulled = dead_letters.pull_back(reader, gone, queue, max(request.offset, 0), before, count, size)
        else:
            pulled = dead_letters.pull(reader, gone, queue, request.offset, count, size)
        # Letters may be left out because of events that are not durable yet.
        await self._receiver.durable()
        self._metrics.messages_out.labels("pull_dead_letters").inc(len(pulled.offsets))
        self._metrics.bytes_out.labels("pull_dead_letters").inc(len(pulled.records))
        return store_pb2.PullDeadLettersResponse(
            records=pulled.records,
            offsets=pulled.offsets,
            next_offset=pulled.next_offset,
            max_offset=pulled.max_offset,
        )

    async def drop_letters(self, request: store_pb2.DropDeadLettersRequest) -> store_pb2.DropDeadLettersResponse:
        dropped = self._groups.drop_letters([self._letter(place) for place in request.letters])
        await self._receiver.durable()
        return store_pb2.DropDeadLettersResponse(dropped=dropped)

    def _letter(self, place: store_pb2.DeadLetterPlace) -> Letter:
        """Raises: InvalidArgument, NotFound."""
        dead_letters.check_place(self._store.queues, place.topic, place.queue, place.offset)
        return place.topic, place.queue, place.offset


def asked_of(request: consumer_pb2.ReceiveRequest, peer: str, caller: str, wanted: Filter) -> FetchRequest:
    """Raises: InvalidArgument."""
    check_group(request.group)
    faults = take_violations("", request)
    faults += within("max_attempts", request.max_attempts, 0, limits.ATTEMPTS_MAX)
    if not request.queues and not request.retry_queues:
        faults.append(Violation("queues", "is empty"))
    faults += lite_violations(request.lite_topics, request.tags, request.sql)
    refuse(faults)
    if request.invisible_ms:
        _check_invisible(request.invisible_ms)
    return FetchRequest(
        request.group,
        request.topic,
        tuple(one.shard_queue for one in request.queues),
        tuple(one.shard_queue for one in request.retry_queues),
        request.max_count or limits.RECEIVE_COUNT_DEFAULT,
        request.max_bytes or limits.PULL_BYTES_DEFAULT,
        request.invisible_ms or limits.INVISIBLE_MS_DEFAULT,
        request.wait_ms,
        wanted,
        request.max_attempts or limits.DELIVERIES_DEFAULT,
        request.ordered or bool(request.lite_topics),
        request.start_at_ms,
        request.member[: limits.MEMBER_CHARS_MAX] or peer,
        caller,
        max(request.shard_count, 1),
        tuple(dict.fromkeys(lite_key(request.topic, one) for one in request.lite_topics)),
    )


def take_violations(prefix: str, take: consumer_pb2.ReceiveRequest | leases_pb2.Take) -> list[Violation]:
    """Violations of the amounts and the wait. `prefix` precedes the fields."""
    found = within(f"{prefix}max_count", take.max_count, 0, limits.RECEIVE_COUNT_MAX)
    found += within(f"{prefix}max_bytes", take.max_bytes, 0, limits.PULL_BYTES_MAX)
    return found + within(f"{prefix}wait_ms", take.wait_ms, 0, limits.WAIT_MS_MAX)


def numbers_of(request: consumer_pb2.ReceiveRequest) -> dict[tuple[bool, int], int]:
    """The public number of each queue, by whether it is one of the retry topic, and its number on the shard."""
    numbers = {(False, one.shard_queue): one.queue for one in request.queues}
    numbers.update(((True, one.shard_queue), one.queue) for one in request.retry_queues)
    return numbers


def _check(group: str, names: Sequence[bytes], most: int) -> None:
    check_group(group)
    if not 1 <= len(names) <= most:
        raise InvalidArgument([Violation("receipts", f"{len(names)} are not 1 to {most}")])


def _check_invisible(invisible_ms: int) -> None:
    refuse(within("invisible_ms", invisible_ms, limits.INVISIBLE_MS_MIN, limits.INVISIBLE_MS_MAX))


def _as_statuses(statuses: list[int]) -> Any:
    return statuses if any(statuses) else []


__all__ = ["EXPIRED", "OK", "GroupCalls"]
