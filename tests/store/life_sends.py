"""The model's state of messages and of unanswered calls in a shard's lives (life.py)."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from duetime_format.units import Ints


@dataclass
class Message:
    """The model's state of a sent message."""

    topic: str
    queue: int
    level: int
    # Answered offset in the lane for delayed messages. None: it is unknown whether the message is stored.
    offset: int | None = None
    refused: bool = False


@dataclass
class Put:
    """A put that is not answered yet."""

    durable: "asyncio.Future[None]"
    # Offset of each message, or for restores: level and entry behind the last.
    offsets: dict[str, int] = field(default_factory=dict)
    level: int = 0
    watermark: int = 0
    # Restored entries of a lane for any time.
    entries: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def answered(messages: Mapping[str, Message], topics: Collection[str], others: Collection[str] = ()) -> list[str]:
    known = [one for one, message in messages.items() if message.topic in topics and message.offset is not None]
    return [one for one in known if one not in others]


def unanswered(
    messages: Mapping[str, Message],
    topics: Collection[str],
    puts: Iterable[Put],
    batches: Collection[list[str]],
    others: Collection[str],
) -> list[list[str]]:
    """Ids of sends that no call is waiting for: a few single ones, and a batch."""
    known = {message_id for put in puts for message_id in put.offsets} | {*answered(messages, topics), *others}
    open_ids = [one for one, message in messages.items() if message.topic in topics and one not in known]
    batched = {message_id for batch in batches for message_id in batch}
    whole = [batch for batch in batches if batch[0] in open_ids]
    return [[one for one in open_ids if one not in batched][-20:], *whole[-1:]]


def check_batches(batches: Iterable[list[str]], at: Mapping[str, int]) -> None:
    """All messages of a batch are there or none."""
    for batch in batches:
        there = [message_id in at for message_id in batch]
        assert all(there) or not any(there), f"of the batch {batch} only a part is there: {there}"
