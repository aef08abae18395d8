"""What the model of a shard's lives knows of messages, and of calls that are not answered yet (life.py)."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
from duetime_format.units import Ints


@dataclass
class Message:
    """What the model knows of a message that was sent."""

    topic: str
    queue: int
    level: int
    # The answer's, in the lane for delayed ones. None: nobody knows whether it is stored.
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
    # Of a lane for any time: what is restored.
    entries: Ints = field(default_factory=lambda: np.empty(0, np.int64))
