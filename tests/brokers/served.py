"""A look at a broker that continues an export."""

import time
from collections import Counter
from collections.abc import Iterator

from duetime_format.properties import decode_properties
from duetime_format.record import Record

from tests.brokers.remoting import CHECK_TRANSACTION, COMMIT, ROLLBACK, Client, Frame
from tests.cluster.half_used import Key, Used

# A broker needs a second or two, and a busy machine more.
_WAIT_S = 120.0
_PAUSE_S = 0.5
_QUEUES_MAX = 16


def key_of(found: Record) -> Key:
    return found.topic, decode_properties(found.properties)["UNIQ_KEY"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Served:
    """A broker on the export of a shard. `early_ms`: time before its due time at which its engine delivers a message
    at the earliest."""

    def __init__(self, client: Client, used: Used, *, early_ms: int) -> None:
        self._client = client
        self._used = used
        self._early_ms = early_ms
        self._dues = {(topic, key): due_ms for topic, key, due_ms in used.due}
        self._topics = sorted(
            {topic for topic, _, _ in used.places} | {topic for topic, _ in (*self._dues, *used.open)}
        )
        self._committed = Counter[Key]()

    def read(self) -> list[Record]:
        """Reads all topics: the messages of the export lie at their places. Returns the others."""
        found = {(one.topic, one.queue, one.queue_offset): one for one in self._messages()}
        kept = {place: (key_of(found[place])[1], found[place].body) for place in self._used.places if place in found}
        assert kept == self._used.places
        return [one for place, one in found.items() if place not in kept]

    def _messages(self) -> Iterator[Record]:
        for topic in self._topics:
            for queue in range(_QUEUES_MAX):
                if self._client.end_of(topic, queue) > 0:
                    yield from self._client.messages(topic, queue)

    def check_groups(self) -> None:
        """Each group resumes with the messages that were left to it."""
        for (group, topic), left in self._used.left.items():
            starts = {queue: self._client.place_of(group, topic, queue) or 0 for queue in range(_QUEUES_MAX)}
            kept = ((place, key) for place, (key, _) in self._used.places.items() if place[0] == topic)
            assert Counter(key for (_, queue, offset), key in kept if offset >= starts[queue]) == left, group

    def check_deliveries(self, until_ms: int) -> None:
        """Waits until the messages due by then have come, and the committed ones: each once, and none early."""
        wanted = Counter(key for key, due_ms in self._dues.items() if due_ms <= until_ms) + self._committed
        give_up = time.monotonic() + _WAIT_S + max(0, until_ms - now_ms()) / 1_000
        while (came := Counter(map(key_of, self.read()))) != wanted:
            assert time.monotonic() < give_up, {"missing": wanted - came, "too many": came - wanted}
            time.sleep(_PAUSE_S)
        early = {key_of(one): self._dues[key_of(one)] - one.stored_at_ms for one in self.read() if self._is_due(one)}
        assert max(early.values()) <= self._early_ms, early

    def _is_due(self, one: Record) -> bool:
        return key_of(one) in self._dues

    def end_transactions(self, group: str) -> None:
        """Waits until the broker has asked about each open transaction; commits one and rolls one back."""
        self._client.produce(group)
        checks: dict[str, Frame] = {}
        names = {key: topic for topic, key in self._used.open}
        give_up = time.monotonic() + _WAIT_S
        while checks.keys() != names.keys():
            assert time.monotonic() < give_up, (checks.keys(), names)
            self._client.wait(_PAUSE_S)
            for frame in self._client.asked:
                assert frame.code == CHECK_TRANSACTION, frame
                checks[frame.fields["msgId"]] = frame
            self._client.asked.clear()
        committed, rolled_back = sorted(checks)[:2]
        self._client.end(group, checks[committed], COMMIT)
        self._client.end(group, checks[rolled_back], ROLLBACK)
        self._committed[names[committed], committed] += 1
