"""Lite topics that messages are sent to: a store makes room for each that the gateway does not know, or rejects it."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from duetime_core.errors import DueTimeError
from duetime_format.admission import lite_topic_of
from duetime_format.names import is_lite_topic

from duetime_gateway.sending.drafts import Drafts
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.shards import Shards

# Lite topics that the stores are known to have; the oldest is forgotten first.
KNOWN_MAX = 65_536
# Lite topics that a store is asked for in one call.
ASKED_MAX = 4_096


class LiteTopics:
    """See the module."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def admit(
        self, drafts: Drafts, routes: Mapping[str, Route | DueTimeError], caller: str
    ) -> dict[int, DueTimeError]:
        """Makes room at the stores for the drafts' lite topics that are new to this gateway. Returns the errors of
        drafts, by index, whose lite topic is rejected."""
        parents = {
            name: route for name in drafts.topics() if isinstance(route := routes[name], Route) and route.is_lite
        }
        if not parents:
            return {}
        asked: dict[tuple[str, str], list[int]] = {}
        for index in range(len(drafts)):
            draft = drafts[index]
            # A wrong name is the encoder's to reject.
            if draft.topic in parents and is_lite_topic(name := lite_topic_of(draft)):
                asked.setdefault((draft.topic, name), []).append(index)
        new: dict[tuple[str, int], list[str]] = {}
        for topic, name in asked:
            if (topic, name) in self._known:
                self._known.move_to_end((topic, name))
            else:
                route = parents[topic]
                new.setdefault((topic, route.places[route.choose_for_key(name)][0]), []).append(name)
        answers = await asyncio.gather(
            *(self._open(parents[topic], number, names, caller) for (topic, number), names in new.items())
        )
        return {
            index: error
            for (topic, _), refused in zip(new, answers, strict=True)
            for name, error in refused.items()
            for index in asked[topic, name]
        }

    async def _open(self, route: Route, number: int, names: Sequence[str], caller: str) -> Mapping[str, DueTimeError]:
        """The errors of rejected ones."""
        shard, refused = self._shards.get(number), dict[str, DueTimeError]()
        for first in range(0, len(names), ASKED_MAX):
            some = names[first : first + ASKED_MAX]
            try:
                await shard.ready(route)
                faults = await shard.store.open_lite_topics(route.topic, some, caller)
                refused |= {some[index]: error for index, error in faults.items()}
            except DueTimeError as error:
                refused |= dict.fromkeys(some, error)
        self._remember(route.topic, (name for name in names if name not in refused))
        return refused

    def _remember(self, topic: str, names: Iterable[str]) -> None:
        for name in names:
            self._known[topic, name] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
