"""ListPending: pending messages in order of due time, over all lanes of the shard, a page at a time.

    lane 3     ████████░░░░        scanned up to a place; matches wait for the others
    lane 18    ██████░░░░░░░░
    lane 1000  █████████░░
                    └─ all lanes were scanned up to here: matches are given out, the lane is scanned further

Entries are in the order of (due, lane, entry), and a page token is a place in it. A timer lane's rows have topic and
key, so records are read only for possible matches; in a level's lane every examined record is read.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

import numpy as np
from duetime.v1 import message_pb2, pending_pb2
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_core.rpc.attempts import failed_attempts
from duetime_format import attempts as histories
from duetime_format import limits, record
from duetime_format.columns import SEVERAL_KEYS, values
from duetime_format.errors import within
from duetime_format.lanes import LanePlace, is_timer_lane
from duetime_format.names import is_group_topic
from duetime_format.properties import as_text, decode_properties
from duetime_format.schedules import NAME_ENDING, pending_schedule
from duetime_format.units import FILLER_SIZE, Ints, Mask, Units

from duetime_store.counting.ledger import Ledger
from duetime_store.lanes.lane import PendingRows, ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.pending.rules import add_policies, shown_rule
from duetime_store.reading.messages import set_due, stored_message
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns, YieldingScan

# Approximate number of entries that a page examines; then it ends, with its results and a token.
LOOK_MAX = 65_536
# Approximate duration of a page with few matches.
PAGE_S = 0.03
# Entries scanned at once: rows, and those whose records have to be read.
_CHUNK_ROWS, _CHUNK_RECORDS = 1_024, 256
# Records read and written into the answer between two reads of the clock.
_PIECE = 16
# The same for names only.
_PIECE_NAMED = 128
_READ_BYTES = 1024 * 1024
_ENTRY_LAST = (1 << 62) - 1
_TIME_END = (1 << 62) - 1

_TOKEN = Struct(">BqiqI")
_VERSION = 1
_NAMES = (record.REAL_TOPIC.encode(), record.KEYS.encode())
PendingMessage = pending_pb2.PendingMessage
_OF_NAMED = (record.UNIQ_KEY.encode(), *_NAMES)


class Spot(NamedTuple):
    """A place in the order of all lanes."""

    due_at_ms: int
    lane: int
    entry: int

    def token(self) -> bytes:
        head = _TOKEN.pack(_VERSION, *self, 0)[:-4]
        return head + zlib.crc32(head).to_bytes(4, "big")

    @classmethod
    def of(cls, token: bytes) -> "Spot":
        """Raises: InvalidArgument."""
        if len(token) != _TOKEN.size or zlib.crc32(token[:-4]) != int.from_bytes(token[-4:], "big"):
            raise InvalidArgument([Violation("page_token", "was not returned by this call")])
        version, *spot, _ = _TOKEN.unpack(token)
        if version != _VERSION:
            raise InvalidArgument([Violation("page_token", f"has version {version}; this store reads {_VERSION}")])
        return cls(*spot)

    def place_in(self, lane: int) -> LanePlace:
        """The place in a lane up to which all entries are before this spot."""
        if lane == self.lane:
            return LanePlace(self.due_at_ms, self.entry)
        return LanePlace(self.due_at_ms, _ENTRY_LAST if lane < self.lane else -1)


# After all entries.
_END = Spot(_TIME_END, 0, 0)


@dataclass(slots=True)
class _Scan:
    """A lane, scanned up to `place`; `rows` are possible matches not given out yet."""

    lane: ShardLane
    place: LanePlace
    is_over: bool = False
    dues: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    entries: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    # All scanned rows, in order.
    scanned: list[PendingRows] = field(default_factory=list)

    @property
    def spot(self) -> Spot:
        return _END if self.is_over else Spot(self.place.due_at_ms, self.lane.number, self.place.entry)

    def take_to(self, spot: Spot) -> list[Spot]:
        """Removes and returns the entries up to a spot."""
        count = _count_to(spot.place_in(self.lane.number), self.dues, self.entries)
        taken = zip(self.dues[:count].tolist(), self.entries[:count].tolist(), strict=True)
        self.dues, self.entries = self.dues[count:], self.entries[count:]
        return [Spot(due, self.lane.number, own) for due, own in taken]

    def count_to(self, spot: Spot) -> int:
        """Entries scanned up to a spot."""
        place = spot.place_in(self.lane.number)
        return sum(_count_to(place, rows.dues, rows.entries) for rows in self.scanned)


def _count_to(place: LanePlace, dues: Ints, entries: Ints) -> int:
    due_at_ms, entry = place
    return int(((dues < due_at_ms) | ((dues == due_at_ms) & (entries <= entry))).sum())


@dataclass(slots=True)
class _ListFilter:
    """`topic`: its number, None: any. `crc`: of the key."""

    name: str
    topic: int | None
    key: str
    crc: int
    before_ms: int
    schedules_only: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.name or self.key)

    def may_match(self, rows: PendingRows) -> Mask:
        """Possible matches by topics and keys of rows."""
        matching = np.ones(len(rows.entries), np.bool_)
        if self.topic is not None and rows.topics is not None:
            matching &= rows.topics == self.topic
        if self.key and rows.keys is not None:
            matching &= (rows.keys == self.crc) | (rows.keys == SEVERAL_KEYS)
        return matching

    def matches(self, found: PendingMessage) -> bool:
        topic, keys = found.message.topic, found.message.keys
        if self.schedules_only and not found.HasField("schedule"):
            return False
        return self.name in ("", topic) and (not self.key or self.key in keys)


class PendingList:
    """Serves ListPending."""

    def __init__(self, lanes: ShardLanes, ledger: Ledger, reader: Reader, turns: ScanTurns) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._reader = reader
        self._turns = turns

    async def page(self, request: pending_pb2.ListPendingRequest) -> pending_pb2.ListPendingResponse:
        """Raises:
        InvalidArgument: an impossible count or time, or an invalid token."""
        count, start, wanted = self._asked(request)
        page = _ListPage(count, omit_bodies=request.omit_bodies, names_only=request.names_only)
        scans = [_Scan(lane, start.place_in(lane.number)) for lane in self._lanes]
        if wanted.name and wanted.topic is None:
            return page.response
        with self._turns.walk() as walk:
            walk.start()
            await self._fill(page, scans, wanted, walk)
        # The next page scans the entries after this one's end again, and counts them.
        end = page.reached if page.response.next_page_token and page.reached else _END
        page.response.seen_count = sum(scan.count_to(end) for scan in scans)
        return page.response

    def _asked(self, request: pending_pb2.ListPendingRequest) -> tuple[int, Spot, _ListFilter]:
        asked = request.filter
        violations = within("max_count", request.max_count, 0, limits.PENDING_COUNT_MAX)
        before_ms = asked.due_before_ms or _TIME_END
        if not 0 <= asked.due_from_ms < before_ms:
            text = f"{before_ms} is not above due_from_ms, {asked.due_from_ms}, or that is below 0"
            violations.append(Violation("filter.due_before_ms", text))
        refuse(violations)
        start = Spot.of(request.page_token) if request.page_token else Spot(-_TIME_END, 0, -1)
        topic = self._ledger.numbers.find(asked.topic.encode()) if asked.topic else None
        crc = zlib.crc32(asked.key.encode())
        wanted = _ListFilter(asked.topic, topic, asked.key, crc, before_ms, request.schedules_only)
        return request.max_count or limits.PENDING_COUNT_DEFAULT, max(start, Spot(asked.due_from_ms, 0, -1)), wanted

    async def _fill(self, page: "_ListPage", scans: list[_Scan], wanted: _ListFilter, walk: YieldingScan) -> None:
        # Before all lanes were scanned no token is past the page's begin.
        unscanned = list(scans)
        while True:
            least = unscanned.pop() if unscanned else min(scans, key=lambda scan: scan.spot)
            if least.is_over:
                break
            self._scan_on(page, least, wanted)
            if unscanned:
                await walk.turn_if_over()
                continue
            reached = min(scan.spot for scan in scans)
            ready = sorted(spot for scan in scans for spot in scan.take_to(reached))
            piece = _PIECE_NAMED if page.names_only else _PIECE
            for at in range(0, len(ready), piece):
                for spots in _by_lane(ready[at : at + piece]):
                    if not await self._give(page, spots, wanted, walk):
                        return
            if reached.due_at_ms < _TIME_END:
                page.reached = reached
            if page.looked_count >= LOOK_MAX or walk.lasted_s >= PAGE_S:
                page.end()
                return
            await walk.turn_if_over()

    def _scan_on(self, page: "_ListPage", scan: _Scan, wanted: _ListFilter) -> None:
        reads = wanted.is_filtered and not is_timer_lane(scan.lane.number)
        chunk = (
            _CHUNK_RECORDS if reads else _CHUNK_ROWS if wanted.is_filtered else min(page.left_count + 1, _CHUNK_ROWS)
        )
        rows = scan.lane.scan(scan.place, wanted.before_ms, chunk)
        scan.is_over = len(rows.entries) < chunk
        if reads:
            units = scan.lane.units(rows.entries)
            fit = _fitting(units)
            scan.is_over = scan.is_over and fit == len(units)
            rows = PendingRows(rows.entries[:fit], rows.dues[:fit], None, None)
            matching = self._read_matches(scan.lane, rows, units[:fit], wanted)
        else:
            matching = wanted.may_match(rows)
        page.looked_count += len(rows.entries)
        scan.scanned.append(rows)
        if len(rows.entries):
            scan.place = LanePlace(int(rows.dues[-1]), int(rows.entries[-1]))
        scan.dues = np.concatenate((scan.dues, rows.dues[matching]))
        scan.entries = np.concatenate((scan.entries, rows.entries[matching]))

    def _read_matches(self, lane: ShardLane, rows: PendingRows, units: Units, wanted: _ListFilter) -> Mask:
        """Matches by the records."""
        records, sizes, _, _ = self._reader.read(lane.queue, rows.entries, units)
        topics, keys = values(records, sizes, _NAMES)
        name, key = wanted.name.encode(), wanted.key.encode()
        matching = [
            (not name or topic == name) and (not key or (words is not None and key in words.split(b" ")))
            for topic, words in zip(topics, keys, strict=True)
        ]
        return np.array(matching, np.bool_)

    async def _give(self, page: "_ListPage", spots: Sequence[Spot], wanted: _ListFilter, walk: YieldingScan) -> bool:
        """Adds messages of one lane. Returns whether the page has room for more."""
        lane, at = self._lanes[spots[0].lane], 0
        while at < len(spots):
            entries = np.array([spot.entry for spot in spots[at:]], np.int64)
            units = lane.units(entries)
            fit = _fitting(units)
            # Some may have left while others were scanned. Staged ends don't count before they are published.
            still = np.flatnonzero(~lane.progress().gone(entries[:fit], units["tags"][:fit]))
            records, sizes, _, _ = self._reader.read(lane.queue, entries[still], units[still])
            own = [spots[at + index] for index in still.tolist()]
            messages = _named(records, sizes, own) if page.names_only else _whole(records, sizes, own, wanted)
            for spot, found in messages:
                if not page.add(spot, found, wanted):
                    return False
            if own:
                page.reached = own[-1]
            at += fit
            await walk.turn_if_over()
        return True


def _fitting(units: Units) -> int:
    """The number of leading units whose records are read at once; at least 1 if there is one."""
    sizes = np.where(units["size"] == FILLER_SIZE, 0, units["size"]).astype(np.int64)
    return max(int(np.searchsorted(sizes.cumsum(), _READ_BYTES, "right")), min(len(units), 1))


class _ListPage:
    """An answer being filled."""

    def __init__(self, count: int, *, omit_bodies: bool, names_only: bool) -> None:
        self.names_only = names_only
        self.response = pending_pb2.ListPendingResponse()
        self.reached: Spot | None = None
        self.looked_count = 0
        self._count = count
        self._omit_bodies = omit_bodies
        self._size = 0

    @property
    def left_count(self) -> int:
        return self._count - len(self.response.messages)

    def add(self, spot: Spot, found: PendingMessage, wanted: _ListFilter) -> bool:
        """Adds a message if it matches. False: the page is full, and it was not added."""
        if wanted.matches(found):
            if self._omit_bodies:
                found.message.body = b""
            size = found.ByteSize()
            is_full = self._size + size > limits.PULL_ANSWER_BYTES_MAX and self.response.messages
            if not self.left_count or is_full:
                self.end()
                return False
            self._size += size
            self.response.messages.append(found)
        self.reached = spot
        return True

    def end(self) -> None:
        """Sets the page token, as there may be more."""
        if self.reached is not None:
            self.response.next_page_token = self.reached.token()
            self.response.due_at_ms = self.reached.due_at_ms


def _whole(
    records: bytes, sizes: list[int], spots: Sequence[Spot], wanted: _ListFilter
) -> Iterator[tuple[Spot, PendingMessage]]:
    """The messages of records stored back to back; size 0: a missing one. May leave out some that do not match."""
    end = 0
    for size, spot in zip(sizes, spots, strict=True):
        data, end = records[end : end + size], end + size
        if size and (not wanted.schedules_only or NAME_ENDING in data):
            yield spot, _message(record.decode(data, check_crc=False), spot)


def _named(records: bytes, sizes: list[int], spots: Sequence[Spot]) -> Iterator[tuple[Spot, PendingMessage]]:
    """As `_whole`, with only their names."""
    columns = values(records, sizes, _OF_NAMED)
    for size, spot, message_id, topic, keys in zip(sizes, spots, *columns, strict=True):
        if size:
            message = message_pb2.StoredMessage(
                id=as_text(message_id or b""),
                topic=as_text(topic or b""),
                keys=as_text(keys or b"").split(),
                offset=spot.entry,
                due_at_ms=spot.due_at_ms,
            )
            yield spot, PendingMessage(message=message, lane=spot.lane)


def _message(found: record.Record, spot: Spot) -> PendingMessage:
    """The message in the form that consumers will receive; `offset` is the entry."""
    properties = decode_properties(found.properties)
    message = stored_message(found)
    message.topic = properties.get(record.REAL_TOPIC, "")
    if is_group_topic(message.topic) and record.RETRY_TOPIC in properties:
        # The origin of a retry: a group receives several topics.
        message.properties[record.RETRY_TOPIC] = properties[record.RETRY_TOPIC]
    queue = properties.get(record.REAL_QID, "")
    message.queue = int(queue) if queue.isdecimal() and len(queue) < 10 else 0
    message.offset = spot.entry
    set_due(message, properties, spot.due_at_ms)
    message.delay_level = 0 if is_timer_lane(spot.lane) else spot.lane
    history = properties.get(record.ATTEMPTS, "") if is_group_topic(message.topic) else ""
    attempts = failed_attempts(histories.decode(history)) if history else ()
    pending = PendingMessage(message=message, lane=spot.lane, attempts=attempts)
    if (schedule := pending_schedule(found.properties)) is not None:
        pending.schedule.CopyFrom(shown_rule(schedule))
        add_policies(pending.schedule.message, properties)
    return pending


def _by_lane(spots: Sequence[Spot]) -> Iterator[list[Spot]]:
    """Neighbours of one lane, in order."""
    group: list[Spot] = []
    for spot in spots:
        if group and group[0].lane != spot.lane:
            yield group
            group = []
        group.append(spot)
    if group:
        yield group
