"""The calls of producers: sends, ends of transactions, recalls."""

from collections.abc import Sequence
from functools import partial

from duetime.v1 import gateway_pb2, message_pb2, pending_pb2, transactions_pb2
from duetime_core.errors import DueTimeError, refuse
from duetime_core.rpc.calls import refused
from duetime_format.admission import topic_violations

from duetime_gateway.access import permit
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.face.callers import caller
from duetime_gateway.face.transactions import EncodedPrepare, prepare_response
from duetime_gateway.packing.sends import EncodedRequest, results_of
from duetime_gateway.pending.ending import PendingResolver
from duetime_gateway.rocketmq import codes
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.checking import CheckForwarder
from duetime_gateway.rocketmq.handles import Recall, parse_recall, recall_of
from duetime_gateway.rocketmq.inbound import add, recovery_s, type_of
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.routes import types_of
from duetime_gateway.rocketmq.transactions import TransactionIds
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.rules import check_topic
from duetime_gateway.sending.sender import Sender
from duetime_gateway.transactions.columns import EndColumns
from duetime_gateway.transactions.ending import DecisionRouter, EndDecision
from duetime_gateway.transactions.names import parse
from duetime_gateway.transactions.preparing import Preparer

_DECISIONS = {pb.COMMIT: EndDecision.COMMIT, pb.ROLLBACK: EndDecision.ROLLBACK}
# States that fit a decision, taken now or before.
_STATES = {
    EndDecision.COMMIT: transactions_pb2.TRANSACTION_STATE_COMMITTED,
    EndDecision.ROLLBACK: transactions_pb2.TRANSACTION_STATE_ROLLED_BACK,
}
SendResult = message_pb2.SendResult | transactions_pb2.PrepareResult


class Producers:
    """Converts the calls of producers into the gateway's own terms."""

    def __init__(
        self,
        sender: Sender,
        preparer: Preparer,
        ender: DecisionRouter,
        ending: PendingResolver,
        places: QueueLocator,
        checking: CheckForwarder,
        ids: TransactionIds,
    ) -> None:
        self._sender = sender
        self._preparer = preparer
        self._ender = ender
        self._ending = ending
        self._places = places
        self._checking = checking
        self._ids = ids

    async def send(self, request: pb.SendMessageRequest, call: ClientCall) -> pb.SendMessageResponse:
        topic = _topic_of(request.messages)
        refuse(list(topic_violations("topic", topic)))
        await self._places.of(topic)
        taken = types_of(self._places.message_type(topic))
        faults: dict[int, DueTimeError] = {}
        sent, right, types = gateway_pb2.SendRequest(), list[int](), set()
        for index, message in enumerate(request.messages):
            try:
                types.add(_checked_type(topic, message, taken))
                add(sent, topic, message, keeps_priority=pb.PRIORITY in taken)
                right.append(index)
            except DueTimeError as error:
                faults[index] = error
        if pb.TRANSACTION in types and len(request.messages) > 1:
            raise codes.RocketMQError(pb.BAD_REQUEST, "messages: a transaction has one message")
        results: dict[int, SendResult] = {}
        if right:
            if pb.TRANSACTION in types:
                immunity_s = recovery_s(request.messages[0].system_properties)
                found: Sequence[SendResult] = await self._prepare(topic, sent.messages, immunity_s, call)
            else:
                data = sent.SerializeToString()
                sending = await self._sender.begin(EncodedRequest(data), caller(call.context))
                found = results_of(await sending.outcome())
            results = dict(zip(right, found, strict=True))
        response = pb.SendMessageResponse()
        for index, message in enumerate(request.messages):
            entry = response.entries.add(message_id=message.system_properties.message_id)
            _fill(entry, topic, faults.get(index), results.get(index))
        response.status.CopyFrom(codes.together([entry.status for entry in response.entries]))
        return response

    async def _prepare(
        self, topic: str, messages: Sequence[message_pb2.Message], immunity_s: int, call: ClientCall
    ) -> Sequence[SendResult]:
        data = transactions_pb2.PrepareRequest(
            group=topic, messages=messages, check_immunity_s=immunity_s
        ).SerializeToString()
        access = permit.current()
        request = EncodedPrepare(data, partial(self._preparer.half_of, access))
        outcome = await self._preparer.prepare(request, caller(call.context))
        if access.may(Right.SEND, Kind.GROUP, topic):
            self._checking.prepared(call.client, topic)
        results = transactions_pb2.PrepareResponse.FromString(prepare_response(outcome)).results
        for one in results:
            if (name := parse(one.transaction_id)) is not None:
                self._ids.note(topic, name)
        return results

    async def end_transaction(self, request: pb.EndTransactionRequest, call: ClientCall) -> pb.EndTransactionResponse:
        topic, name = stored(request.topic), None
        if request.message_id in ("", request.transaction_id):
            name = await self._ids.find(topic, request.transaction_id, call.remaining_ms)
        if name is None:
            text = f"transaction_id: {request.transaction_id[:255]!r} was not returned by SendMessage for topic {topic}"
            raise codes.RocketMQError(pb.INVALID_TRANSACTION_ID, text)
        decision = _DECISIONS.get(request.resolution, EndDecision.UNKNOWN)
        ended = await self._ender.end(topic, EndColumns.of([(name, decision)]), call.remaining_ms)
        other = ended.others.get(0)
        if other is not None and other.HasField("fault"):
            raise refused(other.fault)
        state = ended.states[0] or (other.state if other is not None else 0)
        if decision in _STATES and state != _STATES[decision]:
            became = transactions_pb2.TransactionState.Name(state).removeprefix("TRANSACTION_STATE_")
            raise codes.RocketMQError(pb.BAD_REQUEST, f"resolution: the transaction has already ended as {became}")
        return pb.EndTransactionResponse(status=codes.ok())

    async def recall(self, request: pb.RecallMessageRequest, call: ClientCall) -> pb.RecallMessageResponse:
        topic = stored(request.topic)
        check_topic("topic", topic)
        named = parse_recall(topic, request.recall_handle)
        ref = pending_pb2.PendingRef(
            message_id=named.message_id, topic=topic, shard=named.shard, lane=named.lane, entry=named.entry
        )
        (result,) = await self._ending.cancel([ref], call.remaining_ms)
        if result.HasField("fault"):
            raise refused(result.fault)
        status = codes.ok()
        if result.status == pending_pb2.CANCEL_STATUS_ALREADY_FIRED:
            text = f"recall_handle: message {named.message_id} has been delivered, or is about to be"
            status = codes.status(pb.BAD_REQUEST, text)
        elif result.status != pending_pb2.CANCEL_STATUS_CANCELLED:
            status = codes.status(pb.NOT_FOUND, f"recall_handle: there is no message {named.message_id}")
        return pb.RecallMessageResponse(status=status, message_id=named.message_id)


def _topic_of(messages: Sequence[pb.Message]) -> str:
    """Raises: Refused: there is no message, or they are for several topics."""
    if not messages:
        raise codes.RocketMQError(pb.BAD_REQUEST, "messages: is empty")
    topics = {stored(message.topic) for message in messages}
    if len(topics) > 1:
        raise codes.RocketMQError(pb.BAD_REQUEST, f"messages: are for {len(topics)} topics; a request has one")
    return topics.pop()


def _checked_type(topic: str, message: pb.Message, taken: "Sequence[pb.MessageType]") -> "pb.MessageType":
    """Raises: Refused: the topic does not take this type, or two types are set."""
    found = type_of(message)
    if found == pb.DELAY and pb.PRIORITY in taken and message.system_properties.HasField("priority"):
        # A broker rejects it, and drops the priority in a topic for delays. Here it keeps both.
        return found
    if found not in taken:
        names = " or ".join(pb.MessageType.Name(one) for one in taken)
        text = f"message_type: the message is {pb.MessageType.Name(found)}; topic {topic} takes {names}"
        raise codes.RocketMQError(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    return found


def _fill(entry: pb.SendResultEntry, topic: str, fault: DueTimeError | None, result: SendResult | None) -> None:
    """Fills an entry with its message's result."""
    if fault is None and result is not None and result.HasField("fault"):
        fault = refused(result.fault)
    if fault is not None or result is None:
        assert fault is not None, "a message is sent or has a fault"
        entry.status.CopyFrom(codes.status_of(fault))
        return
    entry.status.CopyFrom(codes.ok())
    # The committed message of a transaction has it as __transactionId__.
    entry.transaction_id = entry.message_id
    if isinstance(result, transactions_pb2.PrepareResult):
        return
    entry.offset = result.offset
    if result.lane and not result.was_past:
        recall = Recall(result.shard, result.lane, result.offset, entry.message_id)
        entry.recall_handle = recall_of(topic, recall)
