"""The store's contract: builds requests from domain objects, and reads answers. Pure.

It shares messages with the gateway's public contract (`PullRequest`, `ReceiveRequest`, ...). Callers of this package
use them only to ask stores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2, subscriptions_pb2
from duetime_core.rpc.calls import refused

from duetime_gateway.queries import Encoding, LeaseStatus, Pull, PullQueues, QueueEnd, Receive, Selection, Subscribe
from duetime_gateway.shards.batcher import DUPLICATE, PutResult

assert DUPLICATE == store_pb2.PUT_STATUS_DUPLICATE
assert {one.name: one.value for one in Encoding} == {
    name.removeprefix("PULL_ENCODING_"): number for name, number in gateway_pb2.PullEncoding.items()
}
assert {one.name: one.value for one in LeaseStatus} == {
    name.removeprefix("RECEIPT_STATUS_"): number for name, number in consumer_pb2.ReceiptStatus.items()
}


@dataclass(frozen=True, slots=True)
class ReceivePart:
    """The request of a Receive to one shard."""

    receive: Receive
    # (queue of the topic, queue on the shard), also for the group's retry topic below.
    queues: Sequence[tuple[int, int]]
    retry_queues: Sequence[tuple[int, int]]
    # The group's settings: one lease per queue at a time, its start, deliveries before a message becomes a dead letter.
    ordered: bool
    start_at_ms: int
    max_attempts: int
    member: str
    # The caller whose limits count the leases.
    caller: str
    # The group's limits, and the number of shards that share a rate.
    limits: consumer_pb2.GroupLimits
    shard_count: int


def stored_of(answer: store_pb2.PutResponse) -> PutResult:
    """The columns of a put's answer."""
    return PutResult(
        answer.statuses,
        answer.queue_offsets,
        answer.due_at_ms,
        {index: refused(fault) for index, fault in answer.faults.items()} if answer.faults else {},
        answer.duplicate_queues if answer.duplicate_queues else {},
        answer.past,
        answer.duplicate_lanes if answer.duplicate_lanes else {},
    )


def prepared_of(answer: store_pb2.PrepareRecordsResponse) -> PutResult:
    """The columns of a prepare's answer."""
    faults = {index: refused(fault) for index, fault in answer.faults.items()} if answer.faults else {}
    return PutResult(answer.statuses, answer.offsets, answer.check_at_ms, faults, {}, positions=answer.positions)


def replacements(records: Sequence[bytes], max_waits_ms: Sequence[int]) -> list[bytes]:
    """Encodes each record as its own ReplaceRequest; concatenated ones form a single request."""
    return [
        store_pb2.ReplaceRequest(
            replacements=[store_pb2.Replacement(record=one, max_wait_ms=max_wait_ms)]
        ).SerializeToString()
        for one, max_wait_ms in zip(records, max_waits_ms, strict=True)
    ]


def replaced_of(answer: store_pb2.ReplaceResponse) -> PutResult:
    """The results as columns."""
    results = answer.results
    return PutResult(
        [DUPLICATE if one.duplicate else 0 for one in results],
        [-1 if one.HasField("fault") else one.entry for one in results],
        [one.due_at_ms for one in results],
        {index: refused(one.fault) for index, one in enumerate(results) if one.HasField("fault")},
        {},
        [index for index, one in enumerate(results) if one.was_past],
        {index: one.lane for index, one in enumerate(results)},
        {index: one.replaced_id for index, one in enumerate(results) if one.replaced_id},
    )


def pull_request(pull: Pull, shard_queue: int) -> gateway_pb2.PullRequest:
    """Names the shard's queue."""
    return gateway_pb2.PullRequest(
        topic=pull.topic, queue=shard_queue, offset=pull.position.offset, **_selected(pull.selection)
    )


def pull_queues_request(pull: PullQueues, shard_queues: Sequence[int]) -> gateway_pb2.PullQueuesRequest:
    """Names the shard's queues, one for each position."""
    request = gateway_pb2.PullQueuesRequest(topic=pull.topic, **_selected(pull.selection))
    add = request.queues.add
    for position, shard_queue in zip(pull.positions, shard_queues, strict=True):
        add(queue=position.queue, offset=position.offset, shard_queue=shard_queue)
    return request


def subscribe_request(
    subscribe: Subscribe, shard_queues: Sequence[int], credit_bytes: int
) -> subscriptions_pb2.SubscribeRequest:
    """Names the shard's queues, one for each position, with this credit instead of the reader's own."""
    request = subscriptions_pb2.SubscribeRequest(
        credit_bytes=credit_bytes,
        topic=subscribe.topic,
        tags=subscribe.tags,
        sql=subscribe.sql,
        untold_ms=subscribe.untold_ms,
    )
    add = request.queues.add
    for position, shard_queue in zip(subscribe.positions, shard_queues, strict=True):
        add(queue=position.queue, offset=position.offset, shard_queue=shard_queue)
    return request


def receive_request(part: ReceivePart, max_count: int, max_bytes: int, wait_ms: int) -> consumer_pb2.ReceiveRequest:
    """Uses these limits instead of the Receive's own."""
    receive = part.receive
    request = consumer_pb2.ReceiveRequest(
        group=receive.group,
        topic=receive.topic,
        max_count=max_count,
        max_bytes=max_bytes,
        invisible_ms=receive.invisible_ms,
        wait_ms=wait_ms,
        tags=receive.selection.tags,
        sql=receive.selection.sql,
        encoding=receive.selection.encoding,  # type: ignore[arg-type]
        max_attempts=part.max_attempts,
        member=part.member,
        ordered=part.ordered,
        start_at_ms=part.start_at_ms,
        lite_topics=receive.lite_topics,
        limits=part.limits,
        shard_count=part.shard_count,
    )
    for queues, numbers in ((request.queues, part.queues), (request.retry_queues, part.retry_queues)):
        for queue, shard_queue in numbers:
            queues.add(queue=queue, shard_queue=shard_queue)
    return request


def _selected(selection: Selection) -> dict[str, Any]:
    return {
        "max_count": selection.max_count,
        "max_bytes": selection.max_bytes,
        "wait_ms": selection.wait_ms,
        "tags": selection.tags,
        "sql": selection.sql,
        "encoding": selection.encoding,
        "first_bytes_max": selection.first_bytes_max,
    }


def search_request(topic: str, shard_queue: int, at: int | QueueEnd) -> gateway_pb2.SearchOffsetRequest:
    """Asks for the offset at a time or at an end."""
    if at is QueueEnd.EARLIEST:
        return gateway_pb2.SearchOffsetRequest(topic=topic, queue=shard_queue, earliest=True)
    if at is QueueEnd.LATEST:
        return gateway_pb2.SearchOffsetRequest(topic=topic, queue=shard_queue, latest=True)
    return gateway_pb2.SearchOffsetRequest(topic=topic, queue=shard_queue, at_ms=at)


def renumbered_pull(answer: bytes, queue: int) -> bytes:
    """An encoded PullResponse with the shard's queue number replaced by the topic's."""
    response = gateway_pb2.PullResponse.FromString(answer)
    _renumber(response, queue)
    return response.SerializeToString()


def renumbered_queues(answer: bytes) -> bytes:
    """As `renumbered_pull`, for an encoded PullQueuesResponse; it contains the topic's queue numbers."""
    response = gateway_pb2.PullQueuesResponse.FromString(answer)
    for one in response.queues:
        _renumber(one.pull, one.queue)
    return response.SerializeToString()


def _renumber(response: gateway_pb2.PullResponse, queue: int) -> None:
    for message in response.messages:
        message.queue = queue


def receipts_of(answer: bytes) -> list[bytes]:
    """The receipts of an encoded ReceiveResponse."""
    response = consumer_pb2.ReceiveResponse.FromString(answer)
    return [message.receipt for message in response.messages] + [
        receipt for run in response.runs for receipt in run.receipts
    ]


def offsets_of(answer: gateway_pb2.GetOffsetsResponse) -> Mapping[int, int]:
    """A group's offsets by the shard's queue."""
    return {position.shard_queue: position.offset for position in answer.queues}
