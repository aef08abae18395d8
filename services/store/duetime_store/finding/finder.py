"""Finding messages by key, tag, id and offset id, in the index and in the part of the log that is not indexed yet.

    newest first:   tail of the log ──▶ newest index file ──▶ ... ──▶ oldest

The index gives positions by hash, so every record is read and compared: its topic, and its message id or one word of
its KEYS. A deferred message is a record of a lane that names its real topic. It is searched for beside the real topic's
records, and found while it is pending or when it was quarantined; once restored, its copy is found. Likewise half
messages are found by id, until they are committed.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np
from duetime.v1 import gateway_pb2
from duetime_core.errors import InvalidArgument, NotFound, Unavailable, Unsupported, Violation
from duetime_core.telemetry.logs import sparing
from duetime_format import halves, layout, limits, record
from duetime_format.columns import take
from duetime_format.keys import hash_codes, key_hash, key_hashes, tag_word
from duetime_format.lanes import LANE_TOPICS, lane_of, level_of
from duetime_format.names import (
    DLQ_PREFIX,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    QUARANTINE_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
)
from duetime_format.properties import decode_properties, number_of
from duetime_format.units import are_ended, due_of
from duetime_shard.lanes import LaneProgress

from duetime_store.finding.index import IndexFile, may_be_within
from duetime_store.finding.indexer import Indexer, keys_between
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.messages import planned_ms, set_due, stored_message
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.store import Store

log = sparing()

STORED = gateway_pb2.MESSAGE_STATE_STORED
PENDING = gateway_pb2.MESSAGE_STATE_PENDING
QUARANTINED = gateway_pb2.MESSAGE_STATE_QUARANTINED
CANCELLED = gateway_pb2.MESSAGE_STATE_CANCELLED
DEAD = gateway_pb2.MESSAGE_STATE_DEAD
PREPARED = gateway_pb2.MESSAGE_STATE_PREPARED
GIVEN_UP = gateway_pb2.MESSAGE_STATE_GIVEN_UP
ROLLED_BACK = gateway_pb2.MESSAGE_STATE_ROLLED_BACK

_LANE_TOPICS = sorted(LANE_TOPICS)
# Topics of half messages: for the messages, and for copies of those given up.
_HALF_TOPICS = (HALF_TOPIC, GIVEN_UP_TOPIC)
_HALF_STATES = {halves.GIVEN_UP: GIVEN_UP, halves.ROLLED_BACK: ROLLED_BACK}
# Unindexed bytes are read for each query; more than this takes too long.
TAIL_BYTES_MAX = 64 * 1024 * 1024
TAIL_STEP_BYTES = 64 * 1024
# Entries inspected, walks begun, and hashes of ids made, before others have their turn.
STEPS_MAX, _WALKS_MAX, _HASHES_MAX = 64, 64, 512
# Positions remembered by one look-up so that it returns none twice.
_GIVEN_MAX = 65_536
OPEN_WAIT_MS = 2_000
# Maximum topics under which an id without a topic is searched for.
TOPICS_MAX = 16_384
_OFFSET_ID = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")
_TIME_MAX, _ENTRY_CHARS_MAX = (1 << 63) - 1, 64


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """An intact record that a look-up reached."""

    record: record.Record
    properties: dict[str, str]
    # Level, offset and due time of the lane entry that it restores or quarantines.
    entry: list[int] | None

    @property
    def id(self) -> str:
        return self.properties.get(record.UNIQ_KEY, "")

    @property
    def words(self) -> list[str]:
        return [self.id, *self.properties.get(record.KEYS, "").split(" ")]

    @property
    def real_topic(self) -> str:
        """The message's topic; records of lanes and of half messages have it in a property."""
        if self.lane is not None or self.record.topic in _HALF_TOPICS:
            return self.properties.get(record.REAL_TOPIC, "")
        return self.record.topic

    def is_of(self, topic: str) -> bool:
        """Whether it is stored in the topic, is for it, or is a failed message's copy that came from it."""
        # A quarantined record does not name its topic.
        named = self.properties.get(record.REAL_TOPIC), self.properties.get(record.RETRY_TOPIC)
        return topic in (self.record.topic, *named) or self.record.topic == QUARANTINE_TOPIC

    @property
    def ends(self) -> tuple[int, ...]:
        """Lane, entry and due time of the pending message that it replaced; empty: none."""
        text = self.properties.get(record.LANE_ENTRY, "") if self.lane is not None else ""
        fields = text.split(":")
        is_entry = len(fields) == 3 and len(text) < _ENTRY_CHARS_MAX and all(map(str.isdecimal, fields))
        return tuple(map(int, fields)) if is_entry else ()

    @property
    def lane(self) -> int | None:
        """The number of its lane, if it is a lane entry."""
        return lane_of(self.record.topic, self.record.queue)


@dataclass(frozen=True, slots=True)
class SearchView:
    """The shard at one time, so that a message restored during the search is found once, in its earlier state."""

    indexer: Indexer
    end: int
    # By lane.
    progress: dict[int, LaneProgress]


class MessageFinder:
    """Serves queries of one shard. Reads only published records."""

    def __init__(
        self, store: Store, indexer: Indexer | None, metrics: StoreMetrics, turns: ScanTurns, *, shard: int
    ) -> None:
        self._store = store
        self._queues = store.queues
        self._log = store.log
        self._lanes = store.lanes
        self._halves = store.halves
        self._turns = turns
        self._indexer = indexer
        self._metrics = metrics
        self._shard = shard

    @property
    def has_index(self) -> bool:
        return self._indexer is not None

    async def query(
        self, topic: str, key: str, from_ms: int, to_ms: int, max_count: int, tag: str = ""
    ) -> tuple[list[gateway_pb2.FoundMessage], bool]:
        """Messages of a topic by key or id, or by tag if one is given; newest first, and whether there are more.

        Raises:
            Unavailable: too much of the log is not indexed yet.
            Unsupported: this shard builds no index.
        """
        view, to_ms, word = await self.view(), to_ms or _TIME_MAX, tag_word(tag) if tag else key
        hashes = [key_hash(name, word) for name in dict.fromkeys([topic, *_LANE_TOPICS])]
        found: list[gateway_pb2.FoundMessage] = []
        ids: set[str] = set()
        size = 0
        with self._turns.walk() as walk:
            await walk.begin()
            async with aclosing(self.positions(walk, view, hashes, from_ms, to_ms)) as positions:
                async for position in positions:
                    seen = self.read(position, tag or key)
                    if seen is None or topic not in (seen.record.topic, seen.real_topic):
                        continue
                    if seen.properties.get(record.TAGS) != tag if tag else key not in seen.words:
                        continue
                    if not from_ms <= seen.record.stored_at_ms <= to_ms:
                        continue
                    message = await self._resolve(walk, view, seen, as_is=topic in (*LANE_TOPICS, *_HALF_TOPICS))
                    if message is None or (message.state == CANCELLED and seen.id in ids):
                        # It continued as another record, which was met before.
                        continue
                    ids.add(seen.id)
                    if found and (len(found) == max_count or size + seen.record.size > limits.PULL_BYTES_MAX):
                        return found, True
                    found.append(message)
                    size += seen.record.size
        return found, False

    async def get(self, message_id: str, topic: str = "") -> gateway_pb2.FoundMessage:
        """A message by its offset id or its id; of several with one id the newest, a user topic's first.

        Raises:
            NotFound: the shard has none.
            Unavailable, Unsupported: as `query`.
        """
        seen = self.at(message_id)
        if seen is not None and topic in ("", seen.record.topic, seen.real_topic):
            if seen.lane is None and seen.record.topic not in _HALF_TOPICS:
                return self._found(seen, _state(seen))
            view = await self.view()
            with self._turns.walk() as walk:
                await walk.begin()
                message = await self._resolve(walk, view, seen)
                if message is None and seen.id:
                    message = await self._by_id(walk, view, seen.id, seen.real_topic)
            # A restored message without an id: only this record can be found.
            return message or self._found(seen, STORED)
        view = await self.view()
        with self._turns.walk() as walk:
            await walk.begin()
            message = await self._by_id(walk, view, message_id, topic)
        if message is None:
            raise NotFound(f"no message {message_id} on shard {self._shard}", reason="MESSAGE_NOT_FOUND")
        return message

    async def records_of(self, message_id: str, topic: str, max_count: int) -> tuple[list[FoundRecord], bool]:
        """All records of a message, oldest first: itself, its lane records, and its copies in system topics; and
        whether the oldest are left out. `topic`: its original topic; empty: all topics are searched.

        Raises:
            InvalidArgument, Unavailable, Unsupported: as `get`.
        """
        named = self.at(message_id)
        if named is not None and not named.id:
            return [named], False
        wanted = message_id if named is None else named.id
        topics = [name for name in self._queues.counts if not topic or name == topic or is_system_topic(name)]
        found: dict[tuple[str, int, int], FoundRecord] = {}
        view = await self.view()
        with self._turns.walk() as walk:
            await walk.begin()
            hashes = await hashes_in_topics(walk, topics, wanted)
            async with aclosing(self.positions(walk, view, hashes, 0, _TIME_MAX)) as positions:
                async for position in positions:
                    seen = self.read(position, wanted)
                    if seen is None or seen.id != wanted or (topic and not seen.is_of(topic)):
                        continue
                    if len(found) == max_count:
                        return list(found.values())[::-1], True
                    # If retention has appended a lane record again, the copy counts.
                    found.setdefault((seen.record.topic, seen.record.queue, seen.record.queue_offset), seen)
        return list(found.values())[::-1], False

    async def successor(self, walk: YieldingScan, seen: FoundRecord) -> FoundRecord | None:
        """The message that has replaced a lane's record, by their key; None: none is stored (any more)."""
        key = seen.properties.get(record.KEYS, "")
        if not key:
            return None
        view, place = await self.view(), (seen.lane, seen.record.queue_offset)
        async with aclosing(self.positions(walk, view, [key_hash(TIMER_TOPIC, key)], 0, _TIME_MAX)) as positions:
            async for position in positions:
                other = self.read(position, key)
                if other is not None and other.ends[:2] == place:
                    return other
        return None

    def at(self, message_id: str) -> FoundRecord | None:
        """The record that an offset id names: at its position, written by its host."""
        if not _OFFSET_ID.fullmatch(message_id):
            return None
        name = bytes.fromhex(message_id)
        position = int.from_bytes(name[-8:], "big", signed=True)
        if not self._log.is_published(position):
            return None
        seen = self.read(position, expected=False)
        return seen if seen is not None and seen.record.store_host == name[:-8] else None

    async def _by_id(
        self, walk: YieldingScan, view: SearchView, message_id: str, topic: str
    ) -> gateway_pb2.FoundMessage | None:
        hashes = await hashes_in_topics(walk, [topic] if topic else list(self._queues.counts), message_id)
        second: gateway_pb2.FoundMessage | None = None
        async with aclosing(self.positions(walk, view, hashes, 0, _TIME_MAX)) as positions:
            async for position in positions:
                seen = self.read(position, message_id)
                if (
                    seen is None
                    or seen.id != message_id
                    or (topic and topic not in (seen.record.topic, seen.real_topic))
                ):
                    continue
                message = await self._resolve(walk, view, seen)
                if message is not None and (topic or not is_system_topic(message.message.topic)):
                    return message
                second = second or message
        return second

    # --- records --------------------------------------------------------------------------------------------------

    def read(self, position: int, word: str = "", also: bytes = b"", *, expected: bool = True) -> FoundRecord | None:
        """The intact record at a position; None: there is none (any more), or it lacks `word` or the bytes `also`.
        `expected`: a missing record is damage.

        A hash leads to the records of all keys that share it, in lanes those of all topics. Others are not decoded:
        decoding costs a hundred times as much as searching for the word.
        """
        size = layout.size_at(self._log.read(position, layout.PREFIX_BYTES))
        data = self._log.read(position, size) if size else b""
        if data and not (word.encode() in data and also in data):
            return None
        run = take(data, 0, position)
        if not run.count:
            if expected and position >= self._log.min_position:
                self._metrics.damaged.inc()
                log.error("damaged record", position=position)
            return None
        entry = None if run.entries is None else run.entries[:, 0].tolist()
        found = record.decode(run.data, check_crc=False)
        return FoundRecord(found, decode_properties(found.properties), entry)

    async def _resolve(
        self, walk: YieldingScan, view: SearchView, seen: FoundRecord, *, as_is: bool = False
    ) -> gateway_pb2.FoundMessage | None:
        """The message in its state at the view's time; None: a record whose message has been restored or committed.

        `as_is`: the record itself, regardless of its message.
        """
        number = seen.lane
        if seen.record.topic in _HALF_TOPICS and not as_is:
            state = self._half_state(view, seen)
            return None if state is None else self._found(seen, state)
        if number is None or as_is:
            return self._found(seen, _state(seen))
        if number not in view.progress:
            # A broker's timers, which this shard keeps and does not fire, stay unchanged.
            return None if seen.record.topic == SCHEDULE_TOPIC else self._found(seen, STORED)
        entry = np.array([seen.record.queue_offset])
        tags = self._lanes[number].units(entry)["tags"]
        if not view.progress[number].gone(entry, tags)[0]:
            return None if self._is_copied(view, number, seen) else self._found(seen, PENDING)
        if are_ended(tags)[0]:
            return self._found(seen, CANCELLED)
        return self._found(seen, QUARANTINED) if await self._is_aside(walk, view, seen) else None

    def _half_state(self, view: SearchView, seen: FoundRecord) -> gateway_pb2.MessageState | None:
        """The state of a half message; None: it was committed, and its real record is found instead."""
        is_half = seen.record.topic == HALF_TOPIC
        offset = seen.record.queue_offset if is_half else halves.half_of(seen.record.properties)
        if offset is None:
            # A broker gave it up.
            return STORED
        _, _, end = self._halves.published(offset)
        if end is None or end.position >= view.end:
            return PREPARED if is_half else GIVEN_UP
        # A broker does not record the outcome.
        return None if end.code == halves.COMMITTED else _HALF_STATES.get(end.code, STORED)

    def _is_copied(self, view: SearchView, number: int, seen: FoundRecord) -> bool:
        """Whether retention has appended a lane record again within the view: then the copy is found instead."""
        lane = self._lanes[number]
        units = lane.queue.read(seen.record.queue_offset, 1)
        return bool(len(units)) and seen.record.position < int(units["position"][0]) < view.end

    async def _is_aside(self, walk: YieldingScan, view: SearchView, seen: FoundRecord) -> bool:
        """Whether a record of DT_QUARANTINE replaces a lane record."""
        if not seen.id or not self._queues.find(QUARANTINE_TOPIC, 0).max_offset:
            return False
        wanted = key_hash(QUARANTINE_TOPIC, seen.id)
        async with aclosing(self.positions(walk, view, [wanted], 0, _TIME_MAX)) as positions:
            async for position in positions:
                other = self.read(position, seen.id)
                if other is None or other.record.topic != QUARANTINE_TOPIC or other.entry is None:
                    continue
                if other.entry[:2] == [seen.lane, seen.record.queue_offset]:
                    return True
        return False

    def _found(self, seen: FoundRecord, state: gateway_pb2.MessageState) -> gateway_pb2.FoundMessage:
        found = seen.record
        answer = gateway_pb2.FoundMessage(
            message=stored_message(found),
            state=state,
            shard=self._shard,
            offset_id=record.offset_message_id(found.store_host, found.position),
            planned_at_ms=planned_ms(found.properties),
        )
        number = seen.lane
        is_lane = number is not None and number in self._lanes
        if state == STORED or not (is_lane or found.topic in _HALF_TOPICS):
            return answer
        answer.message.topic, answer.message.expires_at_ms = seen.real_topic, 0
        answer.message.queue = number_of(seen.properties.get(record.REAL_QID), 9) or 0
        if number is None:
            return answer
        lane = self._lanes[number]
        answer.message.delay_level = level_of(found.queue) if found.topic == SCHEDULE_TOPIC else 0
        set_due(answer.message, seen.properties, due_of(int(lane.units(np.array([found.queue_offset]))["tags"][0])))
        if state == PENDING:
            answer.lane, answer.entry = number, found.queue_offset
            answer.before_count = lane.pending_before(found.queue_offset)
        return answer

    # --- positions ------------------------------------------------------------------------------------------------

    async def view(self) -> SearchView:
        """Raises: Unsupported, Unavailable."""
        indexer, store = self._indexer, self._store
        if indexer is None:
            raise Unsupported([Violation("key", "this shard builds no index (setting index)")])
        if not indexer.opened.is_set():
            opened = asyncio.ensure_future(indexer.opened.wait())
            try:
                await store.clock.wait_for(opened, OPEN_WAIT_MS)
            finally:
                opened.cancel()
        unread = indexer.unread_bytes
        if not indexer.opened.is_set() or unread > TAIL_BYTES_MAX:
            text = f"{unread} bytes of the log of shard {self._shard} are not indexed yet; repeat later"
            raise Unavailable(text, reason="INDEX_BEHIND")
        return SearchView(indexer, self._log.published_end, {lane.number: lane.progress() for lane in self._lanes})

    async def positions(
        self, walk: YieldingScan, view: SearchView, hashes: Sequence[int], from_ms: int, to_ms: int
    ) -> AsyncGenerator[int, None]:
        """Positions of records with one of the hashes that may have been stored within the times: each once, newest
        first. The caller's work on each may take as long as one piece of a step."""
        given: set[int] = set()
        for position in await self._tail(walk, view, hashes):
            given.add(position)
            yield position
            await walk.turn_if_over()
        async with aclosing(self.positions_in_files(walk, view, hashes, from_ms, to_ms)) as positions:
            async for position in positions:
                if position not in given:
                    if len(given) < _GIVEN_MAX:
                        given.add(position)
                    yield position

    async def positions_in_files(
        self, walk: YieldingScan, view: SearchView, hashes: Sequence[int], from_ms: int = 0, to_ms: int = _TIME_MAX
    ) -> AsyncGenerator[int, None]:
        """As `positions`, from the index alone: some may be repeated."""
        for file in view.indexer.files:
            if file.header.end_at_ms < from_ms:
                return
            chains = [_chain(file, one, from_ms, to_ms) for one in file.occupied(hashes)]
            async with aclosing(_merged(walk, chains)) as positions:
                async for position in positions:
                    await walk.turn_if_over()
                    if position < view.end:
                        yield position

    async def _tail(self, walk: YieldingScan, view: SearchView, hashes: Sequence[int]) -> list[int]:
        """Positions in the unindexed part of the log, newest first."""
        found: list[int] = []
        for rows in keys_between(self._store, view.indexer.position, view.end, TAIL_STEP_BYTES):
            found += np.unique(rows["position"][np.isin(rows["hash"], hashes)]).tolist()
            await walk.turn_if_over()
        return found[::-1]


async def hashes_in_topics(walk: YieldingScan, topics: Sequence[str], message_id: str) -> list[int]:
    """Hashes of an id under each of the topics, under lanes and as a half message. Raises: InvalidArgument."""
    if len(topics) > TOPICS_MAX:
        description = f"is not given, and the shard has {len(topics)} topics; {TOPICS_MAX} are searched at most"
        raise InvalidArgument([Violation("topic", description)])
    names, found = list(dict.fromkeys([*topics, *_LANE_TOPICS, *_HALF_TOPICS])), set[int]()
    for first in range(0, len(names), _HASHES_MAX):
        texts = [f"{name}#{message_id}" for name in names[first : first + _HASHES_MAX]]
        found.update(key_hashes(hash_codes(texts)).tolist())
        await walk.turn_if_over()
    return sorted(found)


def _state(seen: FoundRecord) -> gateway_pb2.MessageState:
    if seen.record.topic == QUARANTINE_TOPIC:
        return QUARANTINED
    return DEAD if seen.record.topic.startswith(DLQ_PREFIX) else STORED


def _chain(file: IndexFile, wanted: int, from_ms: int, to_ms: int) -> Iterator[int | None]:
    """Positions of the entries with a hash; None now and then, so that others have their turn."""
    for steps, hit in enumerate(file.chain(wanted), 1):
        if hit is not None and may_be_within(file, hit, from_ms, to_ms):
            yield hit.position
        if not steps % STEPS_MAX:
            yield None


async def _merged(walk: YieldingScan, chains: Sequence[Iterator[int | None]]) -> AsyncGenerator[int, None]:
    """Merges the positions of several descending chains, in descending order."""
    heads: list[tuple[int, int]] = []
    for number, chain in enumerate(chains):
        if (position := await _next(walk, chain)) >= 0:
            heads.append((-position, number))
        if not number % _WALKS_MAX:
            await walk.turn_if_over()
    heapify(heads)
    while heads:
        position, number = heads[0]
        yield -position
        if (position := await _next(walk, chains[number])) >= 0:
            heapreplace(heads, (-position, number))
        else:
            heappop(heads)


async def _next(walk: YieldingScan, chain: Iterator[int | None]) -> int:
    """The next position; -1: the chain has ended."""
    for position in chain:
        if position is not None:
            return position
        await walk.turn_if_over()
    return -1
