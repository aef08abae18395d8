"""Answers that describe the shard, or list topics, queues, groups or lanes. Lists are made in steps: 100,000 queues at
once would block the loop."""

from collections.abc import Collection, Iterable

from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2
from duetime_format.levels import DelayLevels

from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.attendance import SERVED_WITHIN_MS
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.queues.queues import Queues
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.store import Store

# RocketMQ's permissions of a topic.
READ_WRITE = 6


def describe(store: Store, shard: int, store_host: bytes) -> store_pb2.DescribeResponse:
    """The shard and its state."""
    return store_pb2.DescribeResponse(
        shard=shard,
        store_host=store_host,
        delay_levels_ms=store.levels.delays_ms,
        segment_bytes=store.log.segment_bytes,
        read_only=bool(store.read_only_reason),
        now_ms=store.clock.now_ms(),
        min_position=store.log.min_position,
        max_position=store.published_end,
        refusal=next((refusal.text for refusal in store.gate.refusals()), ""),
        timer_lane_count=store.timer_lane_count,
    )


async def list_queues(turns: ScanTurns, queues: Queues, topic: str) -> store_pb2.ListQueuesResponse:
    """The queues of one topic, or of all, by name and number."""
    response = store_pb2.ListQueuesResponse()
    with turns.walk() as walk:
        walk.start()
        for name in [topic] if topic else sorted(queues.counts):
            for queue in queues.of_topic(name):
                response.queues.add(
                    topic=name, queue=queue.queue, min_offset=queue.min_offset, max_offset=queue.max_offset
                )
            await walk.turn_if_over()
    return response


async def list_topics(turns: ScanTurns, queues: Queues, names: Collection[str]) -> store_pb2.ListStoredTopicsResponse:
    """The existing topics of `names`; all topics if `names` is empty."""
    response = store_pb2.ListStoredTopicsResponse()
    counts = queues.counts
    listed = {name: counts[name] for name in names if name in counts} if names else counts
    with turns.walk() as walk:
        walk.start()
        for name, count in sorted(listed.items()):
            kind = counts.type_of(name)
            response.topics.add(
                name=name, read_queue_count=count, write_queue_count=count, perm=READ_WRITE, message_type=kind
            )
            await walk.turn_if_over()
    return response


async def list_groups(turns: ScanTurns, groups: Iterable[consumer_pb2.Group]) -> consumer_pb2.ListGroupsResponse:
    response = consumer_pb2.ListGroupsResponse()
    with turns.walk() as walk:
        walk.start()
        for group in groups:
            response.groups.append(group)
            await walk.turn_if_over()
    return response


async def list_lanes(
    turns: ScanTurns, lanes: ShardLanes, levels: DelayLevels, clock: ShardClock, shard: int, ahead_ms: int
) -> gateway_pb2.ListLanesResponse:
    """Each lane at one time; `due_count` counts entries that are due in `ahead_ms`."""
    response, by_ms = gateway_pb2.ListLanesResponse(), clock.now_ms() + ahead_ms
    with turns.walk() as walk:
        walk.start()
        for lane in lanes:
            delay_ms = levels.delay_ms(lane.number) if lane.number <= levels.highest else 0
            response.lanes.append(_lane(lane, clock, shard, delay_ms, by_ms))
            await walk.turn_if_over()
    return response


def _lane(lane: ShardLane, clock: ShardClock, shard: int, delay_ms: int, by_ms: int) -> gateway_pb2.Lane:
    oldest, ahead = lane.dues(clock.now_ms())
    p50, p99 = lane.lateness.percentiles_ms()
    return gateway_pb2.Lane(
        shard=shard,
        level=lane.number,
        delay_ms=delay_ms,
        pending_count=lane.pending_count,
        oldest_due_at_ms=oldest,
        next_due_at_ms=ahead,
        watermark=lane.watermark,
        max_offset=lane.queue.max_offset,
        late_p50_ms=p50,
        late_p99_ms=p99,
        restored_count=lane.lateness.count,
        quarantined_count=lane.quarantined_count,
        due_count=lane.count_due(by_ms),
        owner=lane.attendance.served_by(clock.monotonic_ms(), SERVED_WITHIN_MS),
        paused=lane.attendance.paused,
    )
