"""SendBack, RocketMQ's call for messages that were pulled, not leased: read the record, decide, store the copy.

It ends no lease. A repeated call has the same token: its copy carries it, and the store answers a second copy with the
first one's place. It has neither the time of receiving nor the failure, so the history stays unchanged.
"""

from duetime.v1 import retry_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.telemetry.logs import sparing
from duetime_format import limits, names, record
from duetime_format.errors import within
from duetime_format.levels import DelayLevels
from duetime_format.texts import shown

from duetime_retry.copies import FailedMessage, NoRoom, dead_letter, history_of, id_of, retry_copy
from duetime_retry.delays import Wait, wait_of
from duetime_retry.metrics import RetryMetrics
from duetime_retry.policy import DeadLetterDecision, decide_sent_back
from duetime_retry.stores import Stores
from duetime_retry.topics import GroupTopics

log = sparing()


class SendBacks:
    """Answers SendBack."""

    def __init__(self, topics: GroupTopics, stores: Stores, levels: DelayLevels, metrics: RetryMetrics) -> None:
        self._topics = topics
        self._stores = stores
        self._levels = levels
        self._metrics = metrics

    async def send_back(self, request: retry_pb2.SendBackRequest) -> retry_pb2.SendBackResponse:
        """`request` is valid. Raises: DueTimeError."""
        shard, queue = await self._topics.place_of(request.topic, request.queue)
        found = await self._stores.record(shard, request.topic, queue, request.offset)
        decision = decide_sent_back(
            found.reconsume_times,
            request.delay_level if request.HasField("delay_level") else None,
            request.max_attempts if request.HasField("max_attempts") else None,
            self._levels,
        )
        failed = FailedMessage(found, found.reconsume_times + 1, history_of(found), request.queue)
        message_id = id_of(found)
        wait = Wait()
        if isinstance(decision, DeadLetterDecision):
            topic = names.dlq_topic(request.group)
            copy = dead_letter(failed, request.group, decision.reason, request.token)
        else:
            # Always a level's delay.
            topic, wait = names.retry_topic(request.group), wait_of(decision.delay_ms, 0, self._levels)
            try:
                copy = retry_copy(failed, request.group, wait, request.token)
            except NoRoom as error:
                raise InvalidArgument([Violation("properties", str(error))], reason="SEND_BACK_INVALID") from error
        await self._topics.ensure(topic, shard)
        due_at_ms, is_repeated = await self._stores.put(shard, record.encode(copy.record))
        if is_repeated:
            self._metrics.sent_back.labels("repeated").inc()
        elif isinstance(decision, DeadLetterDecision):
            self._metrics.sent_back.labels("dead_letter").inc()
            self._metrics.dead_letters.labels(decision.reason).inc()
            log.info("dead letter", group=request.group, message_id=message_id, reason=decision.reason)
        else:
            self._metrics.sent_back.labels("retry").inc()
            self._metrics.retries.labels("level").inc()
        return retry_pb2.SendBackResponse(
            topic=topic,
            dead=isinstance(decision, DeadLetterDecision),
            delay_level=wait.level,
            deliver_at_ms=due_at_ms,
            attempt=copy.record.reconsume_times,
            message_id=message_id,
            stored_bytes=len(copy.record.body),
        )


def send_back_violations(request: retry_pb2.SendBackRequest) -> list[Violation]:
    """All violations of a request, except its group."""
    violations = []
    if not 1 <= len(request.topic) <= limits.TOPIC_CHARS_MAX or not names.is_name(request.topic):
        violations.append(Violation("topic", f"{shown(request.topic)} is not a topic's name"))
    elif names.is_internal_topic(request.topic):
        violations.append(Violation("topic", f"{request.topic} is a system topic: nothing is sent back from it"))
    if request.queue < 0:
        violations.append(Violation("queue", f"{request.queue} is below 0"))
    if request.offset < 0:
        violations.append(Violation("offset", f"{request.offset} is below 0"))
    violations += within("max_attempts", request.max_attempts, 0, limits.ATTEMPTS_MAX)
    token, most = request.token, limits.SEND_BACK_TOKEN_CHARS_MAX
    if len(token) > most or not (token.isascii() and token.isprintable()) or " " in token:
        violations.append(Violation("token", f"{shown(token)} is not at most {most} printable ASCII characters"))
    return violations
