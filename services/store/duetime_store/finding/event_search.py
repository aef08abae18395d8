"""Finds the events of single messages in the journal of groups (duetime_format.events).

Nearly all events are about other messages: an event is decoded only when its ranges, which ascend, come near. A MiB of
events of a busy queue takes some 15 ms, one of other queues nothing.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from duetime_format import events
from duetime_format.events import Letter, Pairs, PlaceKey, events_near, keys_of, reading
from duetime_format.names import DLQ_PREFIX
from duetime_format.ranges import ranges_of


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """An event of one message: `key` names its place, or a dead letter's queue."""

    kind: int
    offset: int
    key: PlaceKey | None = None
    lease: int = 0
    # GIVE: received. BACK: ended, and counted as an attempt.
    at_ms: int = 0
    counted: bool = False
    # End of the lease, or of the pause.
    until_ms: int = 0
    # GIVE: the number of the delivery (0: a retry service took it), and earlier deliveries with expired leases.
    attempt: int = 0
    expired: Pairs = ()
    history: bytes = b""
    # SETTLE: the place of the record that settles the message.
    copy: Letter = ("", 0, 0)


def message_events(body: bytes, messages: Collection[Letter]) -> Iterator[MessageEvent]:
    """The events of a record about `messages`, which are named by topic, queue and offset.

    Raises: Damaged.
    """
    with reading():
        keys, at = keys_of(body)
        # Offsets by the number of their place.
        wanted = {
            number: {offset for topic, queue, offset in messages if (topic, queue) == (key.queue_topic, key.queue)}
            for number, key in keys.items()
        }
        spans = {number: (min(offsets), max(offsets)) for number, offsets in wanted.items() if offsets}
        if not spans and not any(topic.startswith(DLQ_PREFIX) for topic, _, _ in messages):
            return
        for event in events_near(body, at, spans):
            if isinstance(event, events.DeadLetterRemoveEvent | events.DeadLetterKeepEvent):
                yield from _letter_events(event, messages)
            else:
                # `events_near` yields no other kinds.
                number: int = event.place  # type: ignore[attr-defined]
                yield from _place_events(event, keys[number], wanted[number])


def _letter_events(
    event: events.DeadLetterRemoveEvent | events.DeadLetterKeepEvent, messages: Collection[Letter]
) -> Iterator[MessageEvent]:
    topic, queue = event.topic, event.queue
    wanted = {offset for name, number, offset in messages if (name, number) == (topic, queue)}
    for offset in _among(wanted, event.ranges):
        yield MessageEvent(event.kind, offset, PlaceKey(topic.removeprefix(DLQ_PREFIX), "", topic, queue))


def _place_events(event: events.GroupEvent, key: PlaceKey, wanted: set[int]) -> Iterator[MessageEvent]:
    match event:
        case events.GiveEvent(lease=lease, received_at_ms=at_ms, until_ms=until_ms, expired=expired):
            attempt = 0 if event.is_taken else event.attempt
            for offset in _among(wanted, event.ranges):
                yield MessageEvent(
                    event.kind, offset, key, lease, at_ms, until_ms=until_ms, attempt=attempt, expired=expired
                )
        case events.EndEvent(lease=lease):
            yield from (MessageEvent(event.kind, offset, key, lease) for offset in _among(wanted, event.ranges))
        case events.ChangeEvent(lease=lease, until_ms=until_ms):
            for offset in _among(wanted, event.ranges):
                yield MessageEvent(event.kind, offset, key, lease, until_ms=until_ms)
        case events.ReturnEvent(lease=lease, ended_at_ms=at_ms, counted=counted):
            for offset in _among(wanted, event.ranges):
                yield MessageEvent(event.kind, offset, key, lease, at_ms, counted)
        case events.DeferEvent(lease=lease, offset=offset, until_ms=until_ms, history=history) if offset in wanted:
            yield MessageEvent(event.kind, offset, key, lease, until_ms=until_ms, history=history)
        case events.SettleEvent(lease=lease, offset=offset, copy=copy) if offset in wanted:
            yield MessageEvent(event.kind, offset, key, lease, copy=copy)


def _among(wanted: set[int], data: bytes) -> list[int]:
    """The offsets in the ranges, ascending."""
    return sorted({offset for first, count in ranges_of(data) for offset in wanted if first <= offset < first + count})
