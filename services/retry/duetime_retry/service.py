"""The Retry's gRPC surface, and SendBack's way: read the record, decide, store the copy."""

from collections.abc import AsyncIterator
from typing import Any

import structlog
from duetime.v1 import consumer_pb2, retry_pb2, retry_pb2_grpc
from duetime_core import limits, names, record
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.levels import DelayLevels
from prometheus_client import Counter

from duetime_retry.copies import Failed, NoRoom, dead_letter, history_of, retry_copy
from duetime_retry.dead_letters import DeadLetters
from duetime_retry.delays import Wait, wait_of
from duetime_retry.policy import DeadLetter, decide_sent_back
from duetime_retry.stores import Stores
from duetime_retry.topics import Topics

log = structlog.get_logger()


class RetryService(retry_pb2_grpc.RetryServicer):
    """See proto/duetime/v1/retry.proto."""

    def __init__(
        self, topics: Topics, stores: Stores, levels: DelayLevels, sent_back: Counter, dead_letters: DeadLetters
    ) -> None:
        self._topics = topics
        self._stores = stores
        self._levels = levels
        self._sent_back = sent_back
        self._dead_letters = dead_letters

    async def SendBack(self, request: retry_pb2.SendBackRequest, context: Any) -> retry_pb2.SendBackResponse:
        violations = check(request)
        if violations:
            raise InvalidArgument(violations, reason="SEND_BACK_INVALID")
        shard, queue = await self._topics.place_of(request.topic, request.queue)
        found = await self._stores.record(shard, request.topic, queue, request.offset)
        decision = decide_sent_back(
            found.reconsume_times,
            request.delay_level if request.HasField("delay_level") else None,
            request.max_attempts if request.HasField("max_attempts") else None,
            self._levels,
        )
        # Nobody told when it was received or why it failed: the history stays as it was.
        failed = Failed(found, found.reconsume_times + 1, history_of(found), request.queue)
        dead = isinstance(decision, DeadLetter)
        wait = Wait()
        if isinstance(decision, DeadLetter):
            topic, copy = names.dlq_topic(request.group), dead_letter(failed, request.group, decision.reason)
        else:
            topic, wait = names.retry_topic(request.group), wait_of(decision.delay_ms, 0, self._levels)
            try:
                copy = retry_copy(failed, request.group, wait)
            except NoRoom as error:
                raise InvalidArgument([Violation("properties", error.text)], reason="SEND_BACK_INVALID") from error
        await self._topics.ensure(topic, shard)
        due_at_ms = await self._stores.put(shard, record.encode(copy.record))
        self._sent_back.labels("dead_letter" if dead else "retry").inc()
        message_id = record.property_value(found.properties, record.UNIQ_KEY.encode()) or b""
        if isinstance(decision, DeadLetter):
            log.info("dead letter", group=request.group, message_id=message_id.decode(), reason=decision.reason)
        return retry_pb2.SendBackResponse(
            topic=topic,
            dead=dead,
            delay_level=wait.level,
            deliver_at_ms=due_at_ms,
            attempt=copy.record.reconsume_times,
            message_id=message_id.decode(),
        )

    async def ListDeadLetters(
        self, request: consumer_pb2.ListDeadLettersRequest, context: Any
    ) -> consumer_pb2.ListDeadLettersResponse:
        return await self._dead_letters.page(request)

    def RedriveDeadLetters(
        self, request: consumer_pb2.RedriveRequest, context: Any
    ) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self._dead_letters.redrive(request)

    def DiscardDeadLetters(
        self, request: consumer_pb2.DiscardRequest, context: Any
    ) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self._dead_letters.discard(request)


def check(request: retry_pb2.SendBackRequest) -> list[Violation]:
    """All that is wrong with a request."""
    violations = group_violations(request.group)
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


def group_violations(group: str) -> list[Violation]:
    # The topics of the group have its name with a prefix, and a topic has 127 characters at most.
    if 1 <= len(group) <= limits.GROUP_CHARS_MAX and names.is_name(group):
        return []
    return [Violation("group", f"{group!r} is not 1 to {limits.GROUP_CHARS_MAX} characters of [%|a-zA-Z0-9_-]")]
