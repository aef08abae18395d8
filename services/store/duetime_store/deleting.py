"""Creating and deleting topics of a shard: PutTopic, PutTopics and DeleteTopic.

A deletion is one record of the log. Everything else of the topic is removed in an order in which a crash anywhere
leaves either the topic or its deletion:

    closed ──▶ nothing pending ──▶ record durable: queues and places of groups are gone for everybody
           ──▶ offsets, pauses of groups ──▶ topics.json ──▶ checkpoint, which has the deletion ──▶ files of the queues

Recovery or the next call repeats all steps after the record.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from duetime.v1 import gateway_pb2, pending_pb2, store_pb2
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Unavailable, Violation
from duetime_format import limits, record
from duetime_format.deletions import Deletion
from duetime_format.names import DELETED_TOPIC, is_system_topic
from duetime_format.record import Record, encode, with_crc_mark

from duetime_store.files.worker import FileWorker
from duetime_store.groups.retries import WaitingRetries
from duetime_store.groups.topic_readers import TopicReaders
from duetime_store.pending.backlog import BacklogCounter
from duetime_store.queues.deletions import sweep
from duetime_store.queues.topics import TopicFile, check_topic
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

log = structlog.get_logger()

CLOSE, OPEN, DELETE = (
    store_pb2.DELETION_STAGE_CLOSE,
    store_pb2.DELETION_STAGE_OPEN,
    store_pb2.DELETION_STAGE_DELETE,
)


class TopicCalls:
    """See proto/duetime/v1/store.proto for the promises of each call."""

    def __init__(
        self,
        store: Store,
        topics: TopicFile,
        readers: TopicReaders,
        backlog: BacklogCounter,
        retries: WaitingRetries,
        flusher: Flusher,
        checkpointer: Checkpointer,
        worker: FileWorker,
    ) -> None:
        """`worker`: the checkpoints' thread, which may still write units of a deleted topic."""
        self._store = store
        self._queues = store.queues
        self._closing = store.closing
        self._topics = topics
        self._readers = readers
        self._backlog = backlog
        self._retries = retries
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._worker = worker
        self._deleting = asyncio.Lock()

    # --- creating ---------------------------------------------------------------------------------------------------

    async def put(self, request: store_pb2.PutTopicRequest) -> None:
        """Raises: DueTimeError."""
        refusal = self._closing.announced(request.name, request.generation)
        if refusal is not None:
            raise refusal
        self._topics.put(request.name, request.queue_count, request.message_type)
        await self._flusher.events_durable()

    async def put_all(self, requests: Sequence[store_pb2.PutTopicRequest]) -> dict[int, DueTimeError]:
        """Returns the errors of rejected topics, by index. Raises: DueTimeError."""
        if len(requests) > limits.TOPICS_PUT_MAX:
            text = f"{len(requests)} topics; the limit is {limits.TOPICS_PUT_MAX}"
            raise InvalidArgument([Violation("topics", text)])
        announced = self._closing.announced
        asked = {index: announced(one.name, one.generation) for index, one in enumerate(requests)}
        refused = {index: error for index, error in asked.items() if error is not None}
        wanted = [index for index in asked if index not in refused]
        sound = [requests[index] for index in wanted]
        answer = self._topics.put_all([(one.name, one.queue_count, one.message_type) for one in sound])
        await self._flusher.events_durable()
        return refused | {wanted[at]: error for at, error in answer.items()}

    # --- deleting ---------------------------------------------------------------------------------------------------

    async def delete(self, request: store_pb2.DeleteStoredTopicRequest) -> store_pb2.DeleteStoredTopicResponse:
        """Raises: DueTimeError."""
        topic = request.name
        check_topic(topic, 1)
        if is_system_topic(topic):
            raise InvalidArgument([Violation("name", f"topic {topic} is the store's own, or a group's")])
        if request.stage == CLOSE:
            self._closing.close(topic)
            # The counts below include everything staged before.
            await self._flusher.durable()
        elif request.stage == OPEN:
            self._closing.open(topic)
        elif request.stage == DELETE:
            async with self._deleting:
                await self._delete(topic, request.generation)
        return await self._counted(topic)

    async def _counted(self, topic: str) -> store_pb2.DeleteStoredTopicResponse:
        known = self._queues.deletions.get(topic)
        response = store_pb2.DeleteStoredTopicResponse(
            pending_count=await self._pending(topic),
            deleted_generation=-1 if known is None else known.generation,
            message_count=sum(one.max_offset - one.min_offset for one in self._queues.of_topic(topic)),
        )
        for group, left in sorted((await self._readers.left(topic)).items()):
            response.groups.append(
                gateway_pb2.TopicGroup(
                    group=group,
                    unread_count=left.unread,
                    in_flight_count=left.in_flight,
                    retry_count=left.retries,
                )
            )
        return response

    async def _pending(self, topic: str) -> int:
        asked = pending_pb2.BacklogRequest(topic=topic, all_lanes_together=True)
        return (await self._backlog.answer(asked)).pending_count

    async def _delete(self, topic: str, generation: int) -> None:
        """Durable on return. Raises: DueTimeError: call it again to continue."""
        known = self._queues.deletions.get(topic)
        if known is None or known.generation < generation:
            self._closing.close(topic)
            await self._flusher.durable()
            if pending := await self._pending(topic):
                text = f"{pending} messages of topic {topic} are pending on this shard"
                raise FailedPrecondition(text, reason="TOPIC_NOT_EMPTY")
            for group in await self._readers.left(topic):
                await self._cancel_retries(group, topic)
            await self._record(topic, generation)
        elif not self._closing.is_deleted(topic):
            # A later topic with its name exists: the call comes late.
            return
        # Offsets that were committed before the record.
        await self._flusher.events_durable()
        await self._readers.end(topic)
        await self._flusher.events_durable()
        await self._topics.fold()
        if not await self._checkpointer.write():
            raise Unavailable(f"topic {topic} is deleted, but its files are not: no checkpoint", reason="TOPIC_LEFT")
        deletion = self._queues.deletions.get(topic)
        if deletion is not None:
            directory = self._worker.directory
            files = await self._worker.run(sweep, directory.disk, directory, deletion)
            log.info("topic deleted", topic=topic, generation=generation, files=files)
        self._closing.open(topic)

    async def _cancel_retries(self, group: str, topic: str) -> None:
        """Cancels the topic's retries in lanes; durable on return. The group's retries of other topics stay."""
        self._retries.cancel(await self._retries.find(group, lambda names: names.get(record.RETRY_TOPIC) == topic))
        await self._flusher.durable()

    async def _record(self, topic: str, generation: int) -> None:
        """Writes the deletion to the log; durable on return."""
        store = self._store
        store.gate.check_write()
        deletion = Deletion(topic, generation, self._begins(topic))
        now_ms = store.clock.now_ms()
        encoded = encode(Record(DELETED_TOPIC, 0, deletion.encode(), with_crc_mark(b""), born_at_ms=now_ms))
        # Its creation and its offsets so far come first.
        store.stage_events()
        position = store.stage_own(encoded)
        store.staged.settles.append(partial(self._settle, deletion._replace(position=position)))
        await self._flusher.durable()

    def _begins(self, topic: str) -> tuple[int, ...]:
        queues = self._queues
        known = queues.deletions.get(topic)
        count = max(queues.counts.get(topic, 0), len(known.begins) if known is not None else 0)
        ends = {queue.queue: queue.next_offset for queue in queues.of_topic(topic)}
        return tuple(max(ends.get(number, 0), queues.deletions.begin(topic, number)) for number in range(count))

    def _settle(self, deletion: Deletion, durable: bool) -> None:
        if durable:
            self._readers.gone(deletion.topic)
            self._queues.deletions.add(deletion)
            self._queues.drop(deletion.topic)
