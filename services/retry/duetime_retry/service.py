"""The Retry's gRPC surface, and SendBack's way: read the record, decide, store the copy."""

from collections.abc import Mapping
from typing import Any

import grpc
import structlog
from duetime.v1 import retry_pb2, retry_pb2_grpc, store_pb2, store_pb2_grpc
from duetime_core import limits, names, record
from duetime_core.calls import translate
from duetime_core.errors import InvalidArgument, NotFound, Violation
from duetime_core.levels import DelayLevels
from prometheus_client import Counter

from duetime_retry.policy import DeadLetter, Redeliver, decide, returned
from duetime_retry.topics import Topics

log = structlog.get_logger()


class Stores:
    """Calls to the shards, each with a deadline; their statuses become errors here."""

    def __init__(self, channels: Mapping[int, grpc.aio.Channel], timeout_ms: int) -> None:
        self._stubs = {
            shard: store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
            for shard, channel in channels.items()
        }
        self._timeout_s = timeout_ms / 1000.0

    async def _call(self, shard: int, method: str, request: Any) -> Any:
        stub = self._stubs.get(shard)
        if stub is None:
            raise NotFound(f"shard {shard} is not one of this process's stores", reason="SHARD_NOT_FOUND")
        try:
            return await getattr(stub, method)(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"shard {shard}", "SHARD_UNAVAILABLE") from error

    async def record(self, shard: int, topic: str, queue: int, offset: int) -> record.Record:
        request = store_pb2.GetRecordRequest(topic=topic, queue=queue, offset=offset)
        answer = await self._call(shard, "GetRecord", request)
        return record.decode(answer.record)

    async def put(self, shard: int, encoded: bytes) -> int:
        """Stores one record; its due time, or 0. Raises DueTimeError where the store refuses it."""
        answer = await self._call(shard, "PutMessage", store_pb2.PutMessageRequest(records=encoded))
        if answer.faults:
            raise InvalidArgument([Violation("message", answer.faults[0].message)], reason="RECORD_REFUSED")
        return int(answer.due_at_ms[0]) if answer.due_at_ms else 0

    async def put_topic(self, shard: int, topic: str) -> None:
        await self._call(shard, "PutTopic", store_pb2.PutTopicRequest(name=topic, queue_count=1))


class RetryService(retry_pb2_grpc.RetryServicer):
    """See proto/duetime/v1/retry.proto."""

    def __init__(self, topics: Topics, stores: Stores, levels: DelayLevels, sent_back: Counter) -> None:
        self._topics = topics
        self._stores = stores
        self._levels = levels
        self._sent_back = sent_back

    async def SendBack(self, request: retry_pb2.SendBackRequest, context: Any) -> retry_pb2.SendBackResponse:
        violations = check(request)
        if violations:
            raise InvalidArgument(violations, reason="SEND_BACK_INVALID")
        shard, queue = await self._topics.place_of(request.topic, request.queue)
        found = await self._stores.record(shard, request.topic, queue, request.offset)
        decision = decide(
            found.reconsume_times,
            request.delay_level if request.HasField("delay_level") else None,
            request.max_attempts if request.HasField("max_attempts") else None,
            self._levels.highest,
        )
        dead = isinstance(decision, DeadLetter)
        topic = names.dlq_topic(request.group) if dead else names.retry_topic(request.group)
        copy = returned(found, request.group, decision)
        _check_properties(copy)
        target = await self._topics.ensure(topic, shard)
        due_at_ms = await self._stores.put(target, record.encode(copy))
        self._sent_back.labels("dead_letter" if dead else "retry").inc()
        message_id = record.property_value(copy.properties, record.UNIQ_KEY.encode()) or b""
        if isinstance(decision, DeadLetter):
            log.info("dead letter", group=request.group, message_id=message_id.decode(), reason=decision.reason)
        return retry_pb2.SendBackResponse(
            topic=topic,
            dead=dead,
            delay_level=decision.level if isinstance(decision, Redeliver) else 0,
            deliver_at_ms=due_at_ms,
            attempt=copy.reconsume_times,
            message_id=message_id.decode(),
        )


def check(request: retry_pb2.SendBackRequest) -> list[Violation]:
    """All that is wrong with a request."""
    violations = []
    # The topics of the group have its name with a prefix, and a topic has 127 characters at most.
    if not 1 <= len(request.group) <= limits.GROUP_CHARS_MAX or not names.is_name(request.group):
        violations.append(
            Violation("group", f"{request.group!r} is not 1 to {limits.GROUP_CHARS_MAX} characters of [%|a-zA-Z0-9_-]")
        )
    if not 1 <= len(request.topic) <= limits.TOPIC_CHARS_MAX or not names.is_name(request.topic):
        violations.append(Violation("topic", f"{request.topic!r} is not a topic's name"))
    if request.queue < 0:
        violations.append(Violation("queue", f"{request.queue} is below 0"))
    if request.offset < 0:
        violations.append(Violation("offset", f"{request.offset} is below 0"))
    if not 0 <= request.max_attempts <= limits.ATTEMPTS_MAX:
        violations.append(
            Violation("max_attempts", f"{request.max_attempts} is not within 0 and {limits.ATTEMPTS_MAX}")
        )
    return violations


def _check_properties(copy: record.Record) -> None:
    length = len(copy.properties) + (limits.DEFERRAL_BYTES_MAX if copy.topic == names.SCHEDULE_TOPIC else 0)
    if length > limits.PROPERTIES_BYTES_MAX:
        text = f"take {length} bytes with what a retry adds, {limits.PROPERTIES_BYTES_MAX} at most"
        raise InvalidArgument([Violation("properties", text)], reason="SEND_BACK_INVALID")
