"""The Store's gRPC surface: translate in, call, translate out."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from duetime.v1 import (
    consumer_pb2,
    export_pb2,
    gateway_pb2,
    leases_pb2,
    message_pb2,
    pending_pb2,
    schedules_pb2,
    store_pb2,
    store_pb2_grpc,
    subscriptions_pb2,
    transactions_pb2,
)
from duetime_core.access.callers import caller_of
from duetime_core.errors import refuse
from duetime_core.limits.traffic import COUNTED_BYTES_MIN
from duetime_core.rpc.calls import fault_of, faults_of
from duetime_core.rpc.serving import code_of
from duetime_format import limits
from duetime_format.errors import within
from grpc import StatusCode

from duetime_store.exporting import encoded_chunk
from duetime_store.groups.lites import list_lite_topics
from duetime_store.groups.offsets import check_group, check_offsets
from duetime_store.parts import StoreParts
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading import listing
from duetime_store.reading.dueentries import DueEntries
from duetime_store.reading.filters import parsed
from duetime_store.reading.messages import add_messages
from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.reader import PullResult
from duetime_store.transactions.metrics import count_ends, count_prepares
from duetime_store.writing.kept import RestoredBatches
from duetime_store.writing.staging import OK, PutOutcome
from duetime_store.writing.streams import PutStreams

FOUND = gateway_pb2.PULL_STATUS_FOUND
NO_NEW = gateway_pb2.PULL_STATUS_NO_NEW
NO_MATCH = gateway_pb2.PULL_STATUS_NO_MATCH
OUT_OF_RANGE = gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE
_INVALID = code_of(StatusCode.INVALID_ARGUMENT)
_STATUS_NAMES = store_pb2.PutStatus.keys()
SERVICE_NAME = "duetime.v1.Store"

Answer = TypeVar(
    "Answer",
    store_pb2.PutResponse,
    store_pb2.RestoreResponse,
    store_pb2.SettleResponse,
)
Published = TypeVar("Published")
AnyPull = gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest


class StoreService(store_pb2_grpc.StoreServicer):
    """See proto/duetime/v1/store.proto for the promises of each call."""

    def __init__(self, parts: StoreParts, *, shard: int) -> None:
        self._answers = parts.traffic.answers
        self._store = parts.store
        self._reader = parts.reader
        self._finder = parts.finder
        self._by_id = parts.by_id
        self._holding = parts.holding
        self._kept = RestoredBatches()
        self._due = DueEntries(parts.reader, self._kept, parts.metrics)
        self._cancelling = parts.cancelling
        self._replacing = parts.replacing
        self._schedules = parts.schedules
        self._retry_ending = parts.retry_ending
        self._flusher = parts.flusher
        self._checkpointer = parts.checkpointer
        self._topics = parts.topic_calls
        self._offsets = parts.offsets
        self._groups = parts.group_calls
        self._exporter = parts.exporter
        self._subscriptions = parts.subscriptions
        self._backlog = parts.backlog
        self._schedule_counts = parts.schedule_counts
        self._pending_list = parts.pending_list
        self._preparing = parts.preparing
        self._ending = parts.ending
        self._looking = parts.looking
        self._checks = parts.checks
        self._stand_ins = parts.stand_ins
        self._subscription_groups = parts.subscription_groups
        self._metrics = parts.metrics
        self._turns = parts.turns
        self._end_names = parts.end_names
        self._lites = parts.lites
        self._progress = parts.groups.progress
        self._shard = shard
        self._put_streams = PutStreams(parts.store, parts.flusher)
        self._receive_streams = parts.receive_streams
        # Set once the server listens.
        self.store_host = b""

    async def Put(self, request: store_pb2.PutRequest, context: Any) -> store_pb2.PutResponse:
        return self._put_response(await self._durably(self._store.put(request.records, request.batches)))

    async def PutStream(
        self, requests: AsyncIterator[store_pb2.PutRequest], context: Any
    ) -> AsyncIterator[store_pb2.PutResponse]:
        async with aclosing(self._put_streams.answers(requests)) as answers:
            async for number, outcome in answers:
                if isinstance(outcome, PutOutcome):
                    await self._end_names.complete(outcome)
                    response = self._put_response(outcome)
                    self._checkpointer.published()
                else:
                    response = store_pb2.PutResponse(fault=fault_of(outcome))
                response.number = number
                yield response

    def end_streams(self) -> None:
        """Ends streams once their accepted requests are answered, subscriptions at once, and rejects new ones."""
        self._put_streams.end()
        self._subscriptions.end()
        self._receive_streams.end()

    def _put_response(self, outcome: PutOutcome) -> store_pb2.PutResponse:
        response = store_pb2.PutResponse(due_at_ms=outcome.dues, past=outcome.past)
        if outcome.duplicate_queues:
            response.duplicate_queues.update(outcome.duplicate_queues)
            response.duplicate_lanes.update(outcome.duplicate_lanes)
        return self._fill(response, outcome)

    async def Restore(self, request: store_pb2.RestoreRequest, context: Any) -> store_pb2.RestoreResponse:
        if request.kept_count:
            batch = self._kept.take(request.lane, request.first_entry, request.kept_count)
            outcome, durable = await self._holding.restore(
                batch.records, request.lane, named=batch.entries, is_own=True
            )
            await self._until(durable)
            response = store_pb2.RestoreResponse(watermark=outcome.watermark, stored_at_ms=outcome.stored_at_ms)
            self._fill_refused(response, outcome)
            return response
        outcome, durable = await self._holding.restore(
            request.records, request.lane, request.first_entry, request.entries
        )
        await self._until(durable)
        return self._fill(store_pb2.RestoreResponse(watermark=outcome.watermark), outcome)

    async def Settle(self, request: store_pb2.SettleRequest, context: Any) -> store_pb2.SettleResponse:
        outcome = await self._durably(self._groups.settle(request.records, request.settles))
        response = self._fill(store_pb2.SettleResponse(), outcome)
        response.due_at_ms.extend(outcome.dues)
        return response

    async def Cancel(self, request: pending_pb2.CancelRequest, context: Any) -> pending_pb2.CancelResponse:
        return self._published(await self._cancelling.cancel(request))

    async def Replace(self, request: store_pb2.ReplaceRequest, context: Any) -> store_pb2.ReplaceResponse:
        return self._published(await self._replacing.replace(request))

    async def PutSchedule(self, request: store_pb2.PutStoredScheduleRequest, context: Any) -> Any:
        return self._published(await self._schedules.put(request))

    async def PutSchedules(self, request: store_pb2.PutStoredSchedulesRequest, context: Any) -> Any:
        return self._published(await self._schedules.put_all(request))

    async def ChangeSchedule(self, request: store_pb2.ChangeScheduleRequest, context: Any) -> Any:
        return self._published(await self._schedules.change(request))

    async def CountSchedules(self, request: schedules_pb2.CountSchedulesRequest, context: Any) -> Any:
        return await self._schedule_counts.count(request)

    async def ListPending(self, request: pending_pb2.ListPendingRequest, context: Any) -> Any:
        response = await self._pending_list.page(request)
        for message in response.messages:
            message.shard = self._shard
        return response

    async def Backlog(self, request: pending_pb2.BacklogRequest, context: Any) -> pending_pb2.BacklogResponse:
        return await self._backlog.answer(request)

    async def Prepare(self, request: store_pb2.PrepareRecordsRequest, context: Any) -> store_pb2.PrepareRecordsResponse:
        callers = [*zip(request.callers, request.counts, strict=False)]
        prepared = await self._preparing.prepare(request.records, caller_of(context), callers)
        self._checkpointer.published()
        outcome = prepared.outcome
        count_prepares(self._metrics, outcome.statuses)
        response = store_pb2.PrepareRecordsResponse(
            offsets=outcome.queue_offsets, positions=prepared.positions, check_at_ms=prepared.check_at_ms
        )
        self._fill_refused(response, outcome)
        return response

    async def EndTransactions(
        self, request: store_pb2.EndTransactionsRequest, context: Any
    ) -> store_pb2.EndTransactionsResponse:
        asked, answer = await self._ending.end(request)
        self._checkpointer.published()
        count_ends(self._metrics, asked.decisions, answer)
        return answer.response()

    async def TakeChecks(self, request: store_pb2.TakeChecksRequest, context: Any) -> store_pb2.TakeChecksResponse:
        return await self._checks.take(request)

    async def ReportChecks(
        self, request: store_pb2.ReportChecksRequest, context: Any
    ) -> store_pb2.ReportChecksResponse:
        return await self._checks.report(request)

    async def ListTransactions(
        self, request: transactions_pb2.ListTransactionsRequest, context: Any
    ) -> store_pb2.ListHalvesResponse:
        return await self._looking.page(request)

    async def GetTransaction(self, request: store_pb2.GetHalfRequest, context: Any) -> store_pb2.GetHalfResponse:
        return await self._looking.get(request)

    async def _durably(self, outcome: PutOutcome) -> PutOutcome:
        """The outcome, once all staged bytes are durable."""
        self._flusher.wake()
        await self._until(self._store.when_durable())
        await self._end_names.complete(outcome)
        return outcome

    async def _until(self, durable: Awaitable[None] | None) -> None:
        if durable is not None:
            await durable
            self._checkpointer.published()

    def _published(self, answer: Published) -> Published:
        """The answer of a call that has published records."""
        self._checkpointer.published()
        return answer

    def _fill(self, response: Answer, outcome: PutOutcome) -> Answer:
        """Fills in the fields common to all answers."""
        response.queue_offsets.extend(outcome.queue_offsets)
        response.stored_at_ms = outcome.stored_at_ms
        self._fill_refused(response, outcome)
        return response

    def _fill_refused(self, response: Answer | store_pb2.PrepareRecordsResponse, outcome: PutOutcome) -> None:
        """Fills in the rejected records and the reasons."""
        if any(outcome.statuses):
            response.statuses.extend(outcome.statuses)  # type: ignore[arg-type]
            for status, count in Counter(outcome.statuses).items():
                if status != OK:
                    self._metrics.refused.labels(_STATUS_NAMES[status].removeprefix("PUT_STATUS_")).inc(count)
        faults = faults_of(outcome.errors) if outcome.errors else {}
        for index, text in outcome.faults.items():
            own = message_pb2.Fault(code=_INVALID, reason="RECORD_REFUSED", message=text)
            response.faults[index].CopyFrom(faults.get(index, own))

    async def Pull(self, request: gateway_pb2.PullRequest, context: Any) -> gateway_pb2.PullResponse:
        queue = self._store.queues.find(request.topic, request.queue)
        response = gateway_pb2.PullResponse()
        for pulled in await self._pull(request, [(queue, request.offset)], context.peer()):
            self._fill_pull(response, pulled, request)
        return response

    async def PullQueues(self, request: gateway_pb2.PullQueuesRequest, context: Any) -> gateway_pb2.PullQueuesResponse:
        find = self._store.queues.find
        positions = [(find(request.topic, one.shard_queue), one.offset) for one in request.queues]
        response = gateway_pb2.PullQueuesResponse()
        for asked, pulled in zip(request.queues, await self._pull(request, positions, context.peer()), strict=True):
            if pulled.next_offset != asked.offset:
                self._fill_pull(response.queues.add(queue=asked.queue).pull, pulled, request)
        return response

    async def _pull(self, request: AnyPull, positions: list[tuple[ConsumeQueue, int]], peer: str) -> list[PullResult]:
        max_bytes = min(request.max_bytes or limits.PULL_BYTES_DEFAULT, limits.PULL_ANSWER_BYTES_MAX)
        return await self._reader.pull(
            positions,
            await parsed(self._turns, request.tags, request.sql),
            min(request.max_count or limits.PULL_COUNT_DEFAULT, limits.PULL_COUNT_MAX),
            lambda: self._answers.left(peer, max_bytes, COUNTED_BYTES_MIN),
            min(request.wait_ms, limits.WAIT_MS_MAX),
            request.first_bytes_max,
        )

    def Subscribe(
        self, requests: AsyncIterator[subscriptions_pb2.SubscribeRequest], context: Any
    ) -> AsyncIterator[bytes]:
        return self._subscriptions.read(requests, context.peer(), caller_of(context))

    def _fill_pull(self, response: gateway_pb2.PullResponse, pulled: PullResult, request: AnyPull) -> None:
        """Fills in the answer of one queue."""
        response.next_offset = pulled.next_offset
        response.min_offset = pulled.queue.min_offset
        response.max_offset = pulled.queue.max_offset
        found = bool(pulled.sizes)
        if request.encoding == gateway_pb2.PULL_ENCODING_RECORDS:
            response.records = pulled.records
        elif found:
            add_messages(response, pulled.records, pulled.sizes)
            found = bool(response.messages)
        if not pulled.in_range:
            response.status = OUT_OF_RANGE
        else:
            response.status = FOUND if found else NO_MATCH if pulled.scanned else NO_NEW
        self._metrics.messages_out.labels("pull").inc(len(pulled.sizes))
        self._metrics.bytes_out.labels("pull").inc(len(pulled.records))

    async def SearchOffset(
        self, request: gateway_pb2.SearchOffsetRequest, context: Any
    ) -> gateway_pb2.SearchOffsetResponse:
        queue = self._store.queues.find(request.topic, request.queue)
        wanted = request.WhichOneof("at")
        if wanted == "at_ms":
            with self._turns.walk() as walk:
                walk.start()
                offset = await first_stored_at(walk, self._store.log, queue, request.at_ms)
        else:
            offset = queue.max_offset if wanted == "latest" else queue.min_offset
        return gateway_pb2.SearchOffsetResponse(offset=offset)

    async def QueryMessages(
        self, request: gateway_pb2.QueryMessagesRequest, context: Any
    ) -> gateway_pb2.QueryMessagesResponse:
        most, asked = min(request.max_count or limits.QUERY_COUNT_DEFAULT, limits.QUERY_COUNT_MAX), request
        found, more = await self._finder.query(asked.topic, asked.key, asked.from_ms, asked.to_ms, most, asked.tag)
        return gateway_pb2.QueryMessagesResponse(messages=found, more=more)

    async def GetMessage(self, request: gateway_pb2.GetMessageRequest, context: Any) -> gateway_pb2.FoundMessage:
        return await self._by_id.get(request.id, request.topic)

    async def TraceMessage(
        self, request: consumer_pb2.TraceMessageRequest, context: Any
    ) -> consumer_pb2.TraceMessageResponse:
        return await self._by_id.trace(request.id, request.topic)

    async def PullDue(self, request: store_pb2.PullDueRequest, context: Any) -> store_pb2.PullDueResponse:
        return await self._due.answer(request)

    async def StandIn(self, request: store_pb2.StandInRequest, context: Any) -> store_pb2.StandInResponse:
        return self._stand_ins.answer(request)

    async def GetRecord(self, request: store_pb2.GetRecordRequest, context: Any) -> store_pb2.GetRecordResponse:
        queue = self._store.queues.find(request.topic, request.queue)
        return store_pb2.GetRecordResponse(record=self._reader.record_at(queue, request.offset))

    async def CommitOffsets(
        self, request: gateway_pb2.CommitOffsetsRequest, context: Any
    ) -> gateway_pb2.CommitOffsetsResponse:
        self._groups.check_commits(request.group, request.topic)
        offsets = check_offsets(self._store.queues, request.topic, request.queues)
        self._offsets.commit(request.group, request.topic, offsets, caller_of(context))
        await self._flusher.events_durable()
        return gateway_pb2.CommitOffsetsResponse()

    async def GetOffsets(self, request: gateway_pb2.GetOffsetsRequest, context: Any) -> gateway_pb2.GetOffsetsResponse:
        self._store.queues.find(request.topic, 0)
        response = gateway_pb2.GetOffsetsResponse()
        for queue, offset in self._offsets.find(request.group, request.topic).items():
            response.queues.add(queue=queue, offset=offset, shard_queue=queue)
        return response

    async def PutGroup(self, request: consumer_pb2.Group, context: Any) -> store_pb2.PutGroupResponse:
        check_group(request.name)
        self._groups.gates.learn(request.name, request.limits)
        self._subscription_groups.put(request)
        await self._flusher.events_durable()
        return store_pb2.PutGroupResponse()

    async def ShareRates(self, request: store_pb2.ShareRatesRequest, context: Any) -> store_pb2.ShareRatesResponse:
        return self._groups.gates.permits.shared(request)

    async def ListGroups(
        self, request: consumer_pb2.ListGroupsRequest, context: Any
    ) -> consumer_pb2.ListGroupsResponse:
        return await listing.list_groups(self._turns, self._subscription_groups.list())

    async def Receive(self, request: consumer_pb2.ReceiveRequest, context: Any) -> consumer_pb2.ReceiveResponse:
        peer = context.peer()
        if 0 <= request.max_bytes <= limits.PULL_BYTES_MAX:
            wanted = request.max_bytes or limits.PULL_BYTES_DEFAULT
            request.max_bytes = self._answers.left(peer, wanted, COUNTED_BYTES_MIN)
        return await self._groups.receive(request, peer, caller_of(context))

    def ReceiveStream(
        self, requests: AsyncIterator[leases_pb2.ReceiveStreamRequest], context: Any
    ) -> AsyncIterator[leases_pb2.ReceiveStreamResponse]:
        return self._receive_streams.responses(requests, context.peer(), caller_of(context))

    async def AwaitMessages(
        self, request: consumer_pb2.ReceiveRequest, context: Any
    ) -> store_pb2.AwaitMessagesResponse:
        return await self._groups.await_messages(request, context.peer(), caller_of(context))

    async def PullDeadLetters(
        self, request: store_pb2.PullDeadLettersRequest, context: Any
    ) -> store_pb2.PullDeadLettersResponse:
        return await self._groups.pull_letters(request)

    async def DropDeadLetters(
        self, request: store_pb2.DropDeadLettersRequest, context: Any
    ) -> store_pb2.DropDeadLettersResponse:
        return await self._groups.drop_letters(request)

    async def Ack(self, request: consumer_pb2.AckRequest, context: Any) -> consumer_pb2.AckResponse:
        return await self._groups.ack(request)

    async def ChangeInvisible(
        self, request: consumer_pb2.ChangeInvisibleRequest, context: Any
    ) -> consumer_pb2.ChangeInvisibleResponse:
        return await self._groups.change(request)

    async def GetLeased(self, request: store_pb2.GetLeasedRequest, context: Any) -> store_pb2.GetLeasedResponse:
        return await self._groups.get_leased(request)

    async def TakeExhausted(self, request: store_pb2.TakeExhaustedRequest, context: Any) -> store_pb2.GetLeasedResponse:
        return await self._groups.take_exhausted(request)

    async def Defer(self, request: store_pb2.DeferRequest, context: Any) -> store_pb2.DeferResponse:
        return await self._groups.defer(request)

    async def DescribeGroup(
        self, request: consumer_pb2.DescribeGroupRequest, context: Any
    ) -> consumer_pb2.GroupDescription:
        return await self._groups.describe(request.name)

    async def ResetGroup(
        self, request: consumer_pb2.ResetGroupRequest, context: Any
    ) -> consumer_pb2.ResetGroupResponse:
        return await self._groups.reset(request)

    async def PauseGroup(self, request: consumer_pb2.PauseGroupRequest, context: Any) -> consumer_pb2.GroupPauses:
        return await self._groups.gates.pauses.pause(request)

    async def ResumeGroup(self, request: consumer_pb2.ResumeGroupRequest, context: Any) -> consumer_pb2.GroupPauses:
        return await self._groups.gates.pauses.resume(request)

    async def EndRetries(self, request: store_pb2.EndStoredRetriesRequest, context: Any) -> Any:
        return self._published(await self._retry_ending.end(request))

    async def DeleteGroup(
        self, request: consumer_pb2.DeleteGroupRequest, context: Any
    ) -> consumer_pb2.DeleteGroupResponse:
        await self._groups.delete(request, self._subscription_groups.remove)
        return consumer_pb2.DeleteGroupResponse()

    async def PutTopic(self, request: store_pb2.PutTopicRequest, context: Any) -> store_pb2.PutTopicResponse:
        await self._topics.put(request)
        return store_pb2.PutTopicResponse()

    async def PutTopics(self, request: store_pb2.PutTopicsRequest, context: Any) -> store_pb2.PutTopicsResponse:
        response = store_pb2.PutTopicsResponse()
        for index, fault in faults_of(await self._topics.put_all(request.topics)).items():
            response.faults[index].CopyFrom(fault)
        return response

    async def OpenLiteTopics(self, request: store_pb2.OpenLiteTopicsRequest, context: Any) -> Any:
        refused = self._lites.open(request.topic, request.lite_topics, caller_of(context))
        return store_pb2.OpenLiteTopicsResponse(faults=faults_of(refused), keep_ms=self._lites.keep_ms)

    async def ListLiteTopics(self, request: gateway_pb2.ListLiteTopicsRequest, context: Any) -> Any:
        return await list_lite_topics(self._turns, self._lites.lites, self._progress, request, self._flusher)

    async def DeleteTopic(
        self, request: store_pb2.DeleteStoredTopicRequest, context: Any
    ) -> store_pb2.DeleteStoredTopicResponse:
        return await self._topics.delete(request)

    async def ListQueues(self, request: store_pb2.ListQueuesRequest, context: Any) -> store_pb2.ListQueuesResponse:
        return await listing.list_queues(self._turns, self._store.queues, request.topic)

    async def ListTopics(self, request: store_pb2.ListStoredTopicsRequest, context: Any) -> Any:
        return await listing.list_topics(self._turns, self._store.queues, request.names)

    async def Describe(self, request: store_pb2.DescribeRequest, context: Any) -> store_pb2.DescribeResponse:
        return listing.describe(self._store, self._shard, self.store_host)

    async def ListLanes(self, request: gateway_pb2.ListLanesRequest, context: Any) -> gateway_pb2.ListLanesResponse:
        refuse(within("ahead_ms", request.ahead_ms, 0, limits.LANES_AHEAD_MS_MAX))
        lanes, levels, clock = self._store.lanes, self._store.levels, self._store.clock
        return await listing.list_lanes(self._turns, lanes, levels, clock, self._shard, request.ahead_ms)

    async def ListFiles(self, request: export_pb2.ListFilesRequest, context: Any) -> export_pb2.ListFilesResponse:
        return await self._exporter.list()

    async def Export(self, request: export_pb2.ExportRequest, context: Any) -> AsyncIterator[bytes]:
        async for data in self._exporter.read(request.path, request.offset, request.length, caller_of(context)):
            yield encoded_chunk(data)
