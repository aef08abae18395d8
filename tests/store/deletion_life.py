"""A topic that is deleted and recreated during a shard's life of pending messages (pending_life.py, docs/adr/0060).

A deletion is one step, and power may be cut anywhere in it: the topic is closed, its pending messages are cancelled as
a gateway does, and the store's own call deletes it. After each crash

    answered      the topic is deleted, and rejects messages until it is recreated
    unanswered    the topic exists or is deleted; a repeated call completes the deletion
    its messages  ended: pending ones are cancelled and never restored; none is in a queue or a count
    recreated     the topic has the messages sent since, and its offsets continue after the old topic's
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from duetime.v1 import pending_pb2, store_pb2
from duetime_core.errors import DueTimeError
from duetime_format import record
from duetime_format.deletions import Deletion
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_store.deleting import CLOSE, DELETE, TopicCalls
from duetime_store.groups.retries import WaitingRetries
from duetime_store.pending.backlog import BacklogCounter
from duetime_store.pending.surveyor import Surveyor
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.staging import OK

from tests.store.conftest import sent
from tests.store.counted import pending
from tests.store.pending_life import LANES, PendingLife

TOPIC = "mail"
SHARE = 0.12


class NoReaders:
    """Of a shard without groups."""

    async def left(self, topic: str) -> dict[str, Any]:
        return {}

    def gone(self, topic: str) -> None:
        pass

    async def end(self, topic: str) -> None:
        pass


class DeletionLife(PendingLife):
    """See the module."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        # Generation of the topic that exists, or is to be deleted: it rises when the topic is recreated.
        self.generation = 0
        self.is_gone = self.may_be_there = False
        self.begins: tuple[int, ...] = ()
        # Messages of topics of earlier generations, and of this one.
        self.old: set[str] = set()
        self.new: set[str] = set()
        super().__init__(root, dice, mode=mode)

    def _begin(self) -> None:
        super()._begin()
        turns = ScanTurns(lambda: 1.0)
        retries = WaitingRetries(self.store, turns)
        lanes, ledger, clock = self.store.lanes, self.store.ledger, self.store.clock
        backlog = BacklogCounter(lanes, ledger, clock, Surveyor(lanes, ledger, clock, turns), turns)
        readers: Any = NoReaders()
        used = self.topics, readers, backlog, retries, self.flusher, self.checkpointer, self.worker
        self.calls_of_topics = TopicCalls(self.store, *used)

    # --- steps --------------------------------------------------------------------------------------------------------

    def send_there(self, count: int, level: int, body_bytes: int) -> None:
        """Sends messages to the topic; a deleted topic rejects them."""
        # A call that failed may have deleted it: without a checkpoint its files are left.
        if self.is_gone or self.store.closing.is_deleted(TOPIC):
            if not self.may_be_there:
                self._check_refusal(level)
            return
        before = self._count
        try:
            self.send(count, TOPIC, 0, level, body_bytes)
        finally:
            self.new |= {f"m{number}" for number in range(before + 1, self._count + 1)}

    def _check_refusal(self, level: int) -> None:
        async def put() -> None:
            with suppress(DueTimeError):
                outcome = self.store.put(sent("late", topic=TOPIC, level=min(level, 1)))
                assert outcome.statuses != [OK], "a deleted topic took a message"

        self.run(put())

    def make_again(self) -> None:
        """A topic of the name, of the next generation."""
        if not self.is_gone:
            return
        self.may_be_there = True
        asked = store_pb2.PutTopicRequest(name=TOPIC, queue_count=1, generation=self.generation + 1)
        with suppress(DueTimeError):
            self._run_with_flushes(self.calls_of_topics.put(asked))
            self.generation += 1
            self.is_gone = self.may_be_there = False

    def delete(self) -> None:
        """Deletes the topic, or fails for want of a disk that takes it."""
        if self.is_gone:
            return
        self.answer_all()
        if self.calls or not self.store.is_idle:
            return
        with suppress(DueTimeError):
            self.flush_written()
            try:
                self._run_with_flushes(self._delete())
            except BaseException:
                self.store.closing.open(TOPIC)
                raise
            self.note_deletion()
            assert self.is_gone, "the deletion was answered"

    def _run_with_flushes(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        try:
            while not task.done():
                self.go_on(2)
                self.flush()
        finally:
            task.cancel()
            (error,) = self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        if error is not None:
            raise error

    async def _delete(self) -> None:
        """As a gateway does."""
        await self._stage(CLOSE)
        asked = pending_pb2.ListPendingRequest(
            filter=pending_pb2.PendingFilter(topic=TOPIC), max_count=1_000, omit_bodies=True
        )
        while (page := await self.listing.page(asked)).messages:
            ids = [one.message.id for one in page.messages]
            self.truth.aimed_at |= set(ids)
            refs = [
                pending_pb2.PendingRef(message_id=each, lane=one.lane, entry=one.message.offset)
                for each, one in zip(ids, page.messages, strict=True)
            ]
            answer = await self.cancelling.cancel(pending_pb2.CancelRequest(messages=refs))
            for message_id, result in zip(ids, answer.results, strict=True):
                assert result.status == pending_pb2.CANCEL_STATUS_CANCELLED, result
                self.truth.cancelled.add(message_id)
            if not page.next_page_token:
                break
        answered = await self._stage(DELETE)
        assert (answered.pending_count, answered.deleted_generation) == (0, self.generation)

    async def _stage(self, stage: Any) -> store_pb2.DeleteStoredTopicResponse:
        asked = store_pb2.DeleteStoredTopicRequest(name=TOPIC, generation=self.generation, stage=stage)
        return await self.calls_of_topics.delete(asked)

    def retain(self) -> None:
        """Skipped after a failed call that deleted the topic: its messages are neither there nor known to be gone."""
        if self.is_gone or self._deletion() is None:
            super().retain()

    # --- checks -------------------------------------------------------------------------------------------------------

    def _deletion(self) -> Deletion | None:
        """That of the present topic."""
        known = self.store.queues.deletions.get(TOPIC)
        return known if known is not None and known.generation >= self.generation else None

    def note_deletion(self) -> None:
        """The shard has the deletion: forgets everything that readers saw in the topic."""
        known = self._deletion()
        if known is None or self.is_gone:
            return
        self.is_gone = True
        # First offset of a new queue, by queue: after every offset that was read.
        self.begins = known.begins
        assert all(self.begins[queue] > offset for topic, queue, offset in self.seen if topic == TOPIC)
        self.old |= self.new
        self.new.clear()
        for truth in (self.truth, self.certain):
            truth.plain -= self.old
        self.seen = {place: content for place, content in self.seen.items() if place[0] != TOPIC}
        self.noted = {queue: offset for queue, offset in self.noted.items() if queue[0] != TOPIC}

    def check(self) -> None:
        known = self.store.queues.deletions.get(TOPIC)
        least = self.generation if self.is_gone else self.generation - 1
        assert (-1 if known is None else known.generation) >= least, "a deletion that was answered is forgotten"
        self.note_deletion()
        super().check()
        self._check_topic()

    def _check_topic(self) -> None:
        """Nothing of a deleted topic is left, and nothing of it is in a new one."""
        if self.is_gone and not self.may_be_there:
            assert self.store.closing.is_deleted(TOPIC)
            assert not list(self.store.queues.of_topic(TOPIC))
            assert all(topic != TOPIC for _, _, topic, _ in pending(self.store))
        for queue in self.store.queues.of_topic(TOPIC):
            assert queue.min_offset >= (*self.begins, 0)[queue.queue]
            for position, size, _ in queue.read(queue.min_offset, 1 << 20).tolist():
                with suppress(DamagedBytes):
                    found = record.decode(self.store.read_record(position, size))
                    assert decode_properties(found.properties)[record.UNIQ_KEY] not in self.old, "it came back"

    # --- random steps -------------------------------------------------------------------------------------------------

    def random_step(self) -> None:
        dice = self.dice
        if dice.random() > SHARE:
            super().random_step()
            return
        at = dice.random()
        if at < 0.6:
            self.step(self.send_there, dice.randint(1, 10), dice.choice((0, *LANES)), dice.choice((10, 100, 3_000)))
        elif at < 0.8:
            if dice.random() < 0.5:
                self.cut_power_in(dice.randint(1, 30))
            self.step(self.delete)
        else:
            self.step(self.make_again)
