"""Lite topics that messages are sent to: a store makes room for each that the gateway does not know, or rejects it."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from duetime_core.clock import Clock, turn
from duetime_core.errors import DueTimeError
from duetime_format.admission import lite_topic_of

from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.shards import Shards

# Lite topics that the stores are known to have; the oldest is forgotten first.
KNOWN_MAX = 65_536
# Lite topics that a store is asked for in one call.
ASKED_MAX = 4_096
# Messages checked at a stretch.
CHECKED_AT_ONCE = 32

# Topic, generation and name.
_Lite = tuple[str, int, str]


class LiteTopicAdmitter:
    """See the module."""

    def __init__(self, shards: Shards, encoder: Encoder, clock: Clock) -> None:
        self._shards = shards
        self._encoder = encoder
        self._clock = clock
        # The time, of the monotonic clock, until which a store surely has each.
        self._known: OrderedDict[_Lite, float] = OrderedDict()

    async def admit(
        self, batch: DraftBatch, routes: Mapping[str, Route | DueTimeError], caller: str, until_ms: float
    ) -> None:
        """Makes room at the stores, until a time, for the drafts' lite topics that are new to this gateway. Adds the
        errors of drafts with a rejected lite topic to the batch's faults.

        A draft that breaks a rule takes no room: the encoder rejects it.
        """
        names = batch.drafts.topics()
        parents = {name: route for name in names if isinstance(route := routes[name], Route) and route.is_lite}
        if not parents:
            return
        asked = await self._valid(batch, self._new(batch, parents), parents)
        new: dict[tuple[str, int], list[str]] = {}
        for topic, name in asked:
            route = parents[topic]
            new.setdefault((topic, route.places[route.choose_for_key(name)][0]), []).append(name)
        answers = await asyncio.gather(
            *(self._open(parents[topic], number, names, caller, until_ms) for (topic, number), names in new.items())
        )
        for (topic, _), refused in zip(new, answers, strict=True):
            for name, error in refused.items():
                batch.faults |= dict.fromkeys(asked[topic, name], error)

    def _new(self, batch: DraftBatch, parents: Mapping[str, Route]) -> dict[tuple[str, str], list[int]]:
        """The drafts of each lite topic that the gateway does not know."""
        found: dict[tuple[str, str], list[int]] = {}
        now_ms, drafts = self._clock.monotonic_ms(), batch.drafts
        for index in range(len(drafts)):
            draft = drafts[index]
            route = parents.get(draft.topic)
            name = lite_topic_of(draft) if route is not None else ""
            if route is None or not name:
                continue
            lite = route.topic, route.generation, name
            if self._known.get(lite, now_ms) > now_ms:
                self._known.move_to_end(lite)
            else:
                found.setdefault((draft.topic, name), []).append(index)
        return found

    async def _valid(
        self, batch: DraftBatch, asked: Mapping[tuple[str, str], Sequence[int]], parents: Mapping[str, Route]
    ) -> dict[tuple[str, str], list[int]]:
        """Those of the drafts that break no rule."""
        found: dict[tuple[str, str], list[int]] = {}
        checked = 0
        for (topic, name), indices in asked.items():
            for index in indices:
                if self._encoder.fault(batch, batch.drafts[index], parents[topic]) is None:
                    found.setdefault((topic, name), []).append(index)
                checked += 1
                if checked % CHECKED_AT_ONCE == 0:
                    await turn()
        return found

    async def _open(
        self, route: Route, number: int, names: Sequence[str], caller: str, until_ms: float
    ) -> Mapping[str, DueTimeError]:
        """The errors of rejected ones."""
        refused = dict[str, DueTimeError]()
        for first in range(0, len(names), ASKED_MAX):
            some = names[first : first + ASKED_MAX]
            began_ms = self._clock.monotonic_ms()
            try:
                shard = self._shards.get(number)
                error = (await shard.all_ready([route], until_ms - began_ms))[route]
                if error is not None:
                    raise error
                left_ms = until_ms - self._clock.monotonic_ms()
                faults, keep_ms = await shard.store.open_lite_topics(route.topic, some, caller, left_ms)
            except DueTimeError as error:
                refused |= dict.fromkeys(some, error)
                continue
            refused |= {some[index]: error for index, error in faults.items()}
            for name in some:
                if name not in refused:
                    self._remember((route.topic, route.generation, name), began_ms + keep_ms)
        return refused

    def _remember(self, lite: _Lite, until_ms: float) -> None:
        self._known[lite] = until_ms
        self._known.move_to_end(lite)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
