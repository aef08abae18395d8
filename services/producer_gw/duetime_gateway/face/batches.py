"""SendBatch in `duetime.v1`: its requests, stored all or none, and the call itself."""

from collections.abc import Collection, Iterator
from typing import Any

import grpc
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import DueTimeError, Violation
from duetime_core.rpc.decoding import decode
from duetime_format import record
from duetime_format.admission import Draft

from duetime_gateway.face.callers import Context, caller
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.packing.sends import EncodedRequest, draft_of, encoded_response
from duetime_gateway.sending.outcomes import AllStored, SendOutcomes
from duetime_gateway.sending.sender import Sender


class BatchService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents the call."""

    def __init__(self, sender: Sender, metrics: GatewayMetrics) -> None:
        self._sender = sender
        self._metrics = metrics

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        return {"SendBatch": grpc.unary_unary_rpc_method_handler(self.send_batch)}

    async def send_batch(self, data: bytes, context: Context) -> bytes:
        try:
            sending = await self._sender.begin(EncodedBatch(data), caller(context))
            del data
            outcome = await sending.outcome()
            if isinstance(outcome, SendOutcomes) and outcome.faults:
                raise outcome.faults[min(outcome.faults)]
        except DueTimeError as error:
            self._metrics.batches.labels(error.reason.lower()).inc()
            raise
        self._metrics.batches.labels(_word(outcome)).inc()
        return encoded_response(outcome)


def _word(outcome: AllStored | SendOutcomes) -> str:
    return "duplicate" if isinstance(outcome, SendOutcomes) and outcome.duplicates else "stored"


class EncodedBatch(EncodedRequest):
    """An encoded SendBatchRequest."""

    __slots__ = ()

    is_batch = True

    def drafts(self) -> "BatchDrafts":
        return BatchDrafts(decode(gateway_pb2.SendBatchRequest.FromString, self._data))


class BatchDrafts:
    """The messages of a SendBatchRequest as drafts made on access, with the batch's common fields."""

    __slots__ = ("_request",)

    in_runs = False

    def __init__(self, request: gateway_pb2.SendBatchRequest) -> None:
        self._request = request

    def __len__(self) -> int:
        return len(self._request.messages)

    def __getitem__(self, index: int, /) -> Draft:
        request = self._request
        draft = draft_of(request.messages[index])
        draft.topic, draft.sharding_key = request.topic, request.sharding_key
        draft.queue = request.queue if request.HasField("queue") else None
        # These fields cause a violation below.
        draft.replace, draft.max_wait_ms, draft.priority, draft.lite_topic = False, 0, None, ""
        return draft

    def topics(self) -> Collection[str]:
        return {self._request.topic}

    def violations(self, *, is_lite: bool) -> Iterator[Violation]:
        """Fields of messages that are permitted only on the batch. `is_lite`: the topic has lite topics; in others the
        property that names one is any property, as in a Send."""
        topic = self._request.topic
        firsts: dict[str, int] = {}
        for index, message in enumerate(self._request.messages):
            place = f"messages[{index}]"
            if message.topic not in ("", topic):
                yield Violation(f"{place}.topic", f"{message.topic} is not {topic}: a batch has one topic")
            if message.HasField("queue"):
                yield Violation(f"{place}.queue", "cannot be set per message in a batch; set it on the batch")
            if message.sharding_key:
                yield Violation(f"{place}.sharding_key", "cannot be set per message in a batch; set it on the batch")
            if message.HasField("priority"):
                yield Violation(f"{place}.priority", "cannot be set in a batch, which has one queue; use Send")
            if message.lite_topic or (is_lite and record.LITE_TOPIC in message.properties):
                yield Violation(f"{place}.lite_topic", "cannot be set in a batch, which has one queue; use Send")
            yield from _replacing(place, message)
            first = firsts.setdefault(message.id, index) if message.id else index
            if first != index:
                yield Violation(f"{place}.id", f"is also the id of messages[{first}]")


def _replacing(place: str, message: message_pb2.Message) -> Iterator[Violation]:
    for name in ("replace", "max_wait_ms"):
        if getattr(message, name):
            yield Violation(f"{place}.{name}", "a message of a batch cannot replace another")
