"""The pending messages sent with `replace`, and occurrences of schedules: one at most for each topic and key.

Each of them replaces its predecessor, if that is still pending, in the same record. So of all records of a lane for any
time with DT_UPSERT, a topic and a key, only the newest can be pending. It is found like any key, in the index and in
the tail of the log; no other state exists that a crash could leave out of step with the log.

    staged ──(durable)──▶ known: the newest of some thousand names, so that few are searched for

The names of restored schedules are not read before a call needs a name: most restores meet no call.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duetime_format import record
from duetime_format.lanes import lane_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import VALUE_END, as_text
from duetime_format.replacing import LATEST_MAX, latest_of

from duetime_store.finding.finder import FoundRecord
from duetime_store.finding.search import LogSearch, SearchedWord
from duetime_store.reading.turns import LONG_S, ScanTurns
from duetime_store.writing.occurrences import StagedOccurrences

# Names whose newest message is remembered: some 10 MB.
KNOWN_MAX = 32_768
# Durable occurrences whose names are not read: a call reads them in 10 ms.
UNREAD_MAX = 8_192

Name = tuple[str, str]  # topic, key


class Upsert(NamedTuple):
    """The newest message of a name; its lane has its state."""

    lane: int
    entry: int
    message_id: str
    # The limit set by max_wait.
    latest_due_at_ms: int
    # Whether it is the occurrence of a schedule.
    is_schedule: bool = False


class SearchedKey(SearchedWord):
    """A name to find."""

    def __init__(self, name: Name) -> None:
        topic, key = name
        super().__init__(key, [TIMER_TOPIC], f"{record.REAL_TOPIC}\x01{topic}".encode())
        self._topic = topic
        self._position = -1
        self.newest: Upsert | None = None

    def take(self, seen: FoundRecord) -> None:
        found = seen.record
        lane = lane_of(found.topic, found.queue)
        latest = latest_of(found.properties)
        if found.position <= self._position or lane is None or latest is None or seen.real_topic != self._topic:
            return
        if seen.properties.get(record.KEYS, "") != self.word:
            return
        self._position = found.position
        is_schedule = record.SCHEDULE in seen.properties
        self.newest = Upsert(lane, found.queue_offset, seen.id, latest, is_schedule)

    @property
    def is_done(self) -> bool:
        # Newer ones are met before older ones.
        return self.newest is not None


@dataclass(slots=True, eq=False)
class _Occurred:
    """Occurrences of one restore; `upserts` once their names are read."""

    staged: StagedOccurrences
    is_durable: bool = False
    upserts: dict[Name, Upsert] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.staged.due_at_ms)

    def read(self) -> None:
        for entry, label in enumerate(self.staged.labels.split(VALUE_END), self.staged.first):
            topic, _, rest = as_text(label).partition("\x01")
            name, _, message_id = rest.rpartition("\x01")
            self.upserts[topic, name] = Upsert(self.staged.lane, entry, message_id, LATEST_MAX, is_schedule=True)


class UpsertKeys:
    """The newest message of each name. Belongs to the event loop's thread."""

    def __init__(self, search: LogSearch, turns: ScanTurns) -> None:
        self._search = search
        self._turns = turns
        self._known: OrderedDict[Name, Upsert | None] = OrderedDict()
        self._staged: dict[Name, Upsert] = {}
        # The order is that of their restores.
        self._unread: list[_Occurred] = []
        self._unread_count = 0
        # Calls that search for names now.
        self._learning = 0

    async def learn(self, names: Sequence[Name]) -> None:
        """Finds the newest messages of unknown names, and remembers them part by part: a call that its caller cuts off
        leaves less to the next one. Raises: as LogSearch.find."""
        missing = [name for name in dict.fromkeys(names) if not self.knows(name)]
        while missing:
            wanted = [SearchedKey(name) for name in missing]
            self._learning += 1
            try:
                with self._turns.walk() as walk:
                    await walk.begin()
                    count = await self._search.find(walk, wanted, LONG_S)
                self._read()
            finally:
                self._learning -= 1
            for name, one in zip(missing[:count], wanted, strict=False):
                # A faster call may have newer results.
                if name not in self._known:
                    self._remember(name, one.newest)
            missing = missing[count:]

    def knows(self, name: Name) -> bool:
        self._read()
        return name in self._staged or name in self._known

    def newest(self, name: Name) -> Upsert | None:
        """The newest message of a known name; None: there was none, as far as the log goes back."""
        self._read()
        if name in self._staged:
            return self._staged[name]
        self._known.move_to_end(name)
        return self._known[name]

    def stage(self, name: Name, upsert: Upsert) -> Callable[[bool], None]:
        """Notes a newer, staged message. Returns a callback for whether it became durable."""
        self._read()
        self._staged[name] = upsert
        return lambda durable: self._settle({name: upsert}, durable)

    def _settle(self, upserts: Mapping[Name, Upsert], durable: bool) -> None:
        for name, upsert in upserts.items():
            if durable:
                self._remember(name, upsert)
            if self._staged.get(name) is upsert:
                del self._staged[name]

    def stage_next(self, staged: StagedOccurrences) -> Callable[[bool], None]:
        """As `stage`, for occurrences that follow restored ones."""
        one = _Occurred(staged)
        self._unread.append(one)

        def settle(durable: bool) -> None:
            if one.upserts:
                self._settle(one.upserts, durable)
            elif durable:
                one.is_durable = True
                self._unread_count += one.count
                if self._unread_count > UNREAD_MAX:
                    self._drop()
            else:
                self._unread.remove(one)

        return settle

    def _read(self) -> None:
        """Reads the names of all occurrences so far."""
        for one in self._unread:
            one.read()
            self._staged.update(one.upserts)
            if one.is_durable:
                self._settle(one.upserts, durable=True)
        self._unread.clear()
        self._unread_count = 0

    def _drop(self) -> None:
        """Forgets all that is known, instead of reading the names of many occurrences: no call has needed any of it
        meanwhile."""
        if self._learning:
            # Their results may be older.
            self._read()
            return
        self._known.clear()
        self._unread = [one for one in self._unread if not one.is_durable]
        self._unread_count = 0

    def _remember(self, name: Name, upsert: Upsert | None) -> None:
        self._known[name] = upsert
        self._known.move_to_end(name)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
