"""Making topics, as steps of a life (life.py)."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

from duetime_core.errors import DueTimeError
from duetime_store.queues.topics import TopicFile
from duetime_store.writing.store import Store


class Making:
    """The part of a life that makes topics: an answered one stays."""

    store: Store
    topics: TopicFile
    sync: bool
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    def __init__(self) -> None:
        # Topics whose making was answered.
        self.made: set[str] = set()
        # Async mode: those that a power cut may take.
        self.unflushed_topics: set[str] = set()
        # Those whose records are on their way.
        self.making: list[tuple[asyncio.Future[None], str]] = []

    def add_topic(self) -> None:
        known = self.store.queues.counts
        # A power cut may have taken a topic before this one: then the next name is in use.
        names = map("topic{}".format, count(len(known)))
        self.run(self._add_topic(next(name for name in names if name not in known)))

    async def _add_topic(self, name: str) -> None:
        with suppress(DueTimeError):
            self.topics.put(name, 1)
            durable = self.store.when_events_durable()
            assert durable is not None
            self.making.append((durable, name))

    def settle_topics(self) -> None:
        """Records the answers."""
        answered = {name for made, name in self.making if made.done() and made.exception() is None}
        self.made |= answered
        self.unflushed_topics |= set() if self.sync else answered
        self.making = [(made, name) for made, name in self.making if not made.done()]

    def fold_topics(self) -> None:
        with suppress(DueTimeError):
            self.run(self.topics.fold(whole=True))
