"""One fetch of a topic with priorities: after the retries, the queues from the highest to the lowest, each with its
returned messages before its new ones. No queue starves (precedence.py)."""

from collections.abc import Iterable, Sequence

from prometheus_client import Counter

from duetime_store.groups.fetch import Fetcher, FetchProgress, FetchRequest
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.precedence import Precedence
from duetime_store.lanes.alarm import ShardClock
from duetime_store.queues.queues import Queues
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import YieldingScan


class PriorityFetcher(Fetcher):
    """Fetches available messages for a group, of topics with and without priorities."""

    def __init__(
        self,
        queues: Queues,
        clock: ShardClock,
        reader: Reader,
        groups: GroupRegistry,
        *,
        wait_ms: int,
        claims: Counter,
    ) -> None:
        """`claims`: counts messages of queues that were passed over for `wait_ms`."""
        super().__init__(queues, clock, reader, groups)
        self._wait_ms = wait_ms
        self._claims = claims

    def fetch_by_priority(
        self,
        asked: FetchRequest,
        own: list[GroupPlace],
        retries: list[GroupPlace],
        walk: YieldingScan,
        precedence: Precedence,
        *,
        fresh_first: bool,
    ) -> FetchProgress:
        """As `fetch`, for a topic with priorities."""
        fetched = self._begun(asked, (*own, *retries), walk, peek=False)
        own = sorted(own, key=lambda place: -place.key.queue)
        if not fresh_first:
            self._all_retries(fetched, retries)
            fetched.only_again = fetched.is_over
        now_ms = self._clock.monotonic_ms()
        count = fetched.count
        by_claims = self._by_claims(fetched, own, precedence, now_ms - self._wait_ms)
        self._claims.inc(by_claims)
        for place in own:
            if fetched.is_over or fetched.unfinished or fetched.refused:
                break
            self._again(fetched, place)
            self._fresh(fetched, [place])
        having = [place.key.queue for place in reversed(own) if self.may_have_more([place])]
        empty = {place.key.queue for place in own} - set(having)
        keys = [one.lease.place.key for one in fetched.given]
        served = max((key.queue for key in keys if key.queue_topic == asked.topic), default=-1)
        precedence.note(count - fetched.count, by_claims, [one for one in having if one < served], empty, now_ms)
        if fresh_first:
            self._all_retries(fetched, retries)
        return fetched

    def _all_retries(self, fetched: FetchProgress, retries: Iterable[GroupPlace]) -> None:
        for place in retries:
            self._again(fetched, place)
            self._retried(fetched, place)

    def _by_claims(
        self, fetched: FetchProgress, own: Sequence[GroupPlace], precedence: Precedence, passed_before_ms: float
    ) -> int:
        """Takes messages of queues that were passed over for too long; returns their number."""
        claims = precedence.claims(passed_before_ms)
        if not claims:
            return 0
        highest = next((place.key.queue for place in own if self.may_have_more([place])), -1)
        places = {place.key.queue: place for place in own if place.key.queue != highest}
        due = [places[queue] for queue in claims if queue in places]
        room = min(precedence.room(fetched.count), fetched.count)
        taken = 0
        for number, place in enumerate(due):
            if taken == room or fetched.size <= 0 or fetched.unfinished:
                break
            # Each takes its part of the room; the rest of a part is for the next.
            before, part = fetched.count, -(-(room - taken) // (len(due) - number))
            fetched.count = part
            self._again(fetched, place)
            self._fresh(fetched, [place])
            given = part - fetched.count
            fetched.count = before - given
            taken += given
            if given:
                precedence.gave(place.key.queue)
        return taken
