"""Drafts to records: each draft takes this one path, so it is short. Pure.

A draft that is plainly right passes a cheap test; only one that fails it is judged by `admission`, which knows all
rules and may still find it right. The tags of a topic are few, so each is tested and encoded once.

Of drafts with the same topic and id in one request the first that is right is encoded, and the others share its
result: `Batch.repeats`.

A request that its face could pack whole (`drafts.Packed`) never comes here. One with a retry policy of its own is not
packed, nor are two messages with one id.
"""

from collections.abc import Iterable, Mapping

from duetime_core import retry_policy
from duetime_core.errors import DueTimeError, InvalidArgument, Unsupported
from duetime_format import lanes, limits, record
from duetime_format.making import Maker, topic_field
from duetime_format.names import SCHEDULE_TOPIC

from duetime_gateway.sending.admission import is_word, violations
from duetime_gateway.sending.drafts import Draft, Drafts, Packed, Request, Rules
from duetime_gateway.shards.route import Route

_TAGS_REMEMBERED_MAX = 16_384
# Longer ones are tested each time, so that what is remembered stays small.
_TAG_CHARS_REMEMBERED_MAX = 256
_LANE_TOPIC_FIELD = topic_field(SCHEDULE_TOPIC)
_PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX - limits.CHECKSUM_BYTES
_PROPERTIES_BYTES_MAX_DELAYED = limits.PROPERTIES_BYTES_MAX - limits.DEFERRAL_BYTES_MAX


class Group:
    """The records of one request that go to one shard, in the request's order."""

    __slots__ = ("indices", "maker", "records")

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        self.maker = Maker(born_host, store_host)
        self.indices: list[int] = []
        self.records: list[bytes] = []


class Batch:
    """The drafts of one request, and what is known of each so far, by index."""

    def __init__(self, drafts: Drafts, arrived_at_ms: int, born_host: bytes) -> None:
        count = len(drafts)
        self.drafts = drafts
        self.arrived_at_ms = arrived_at_ms
        self.born_host = born_host
        self.ids = [""] * count
        # -1: none was chosen.
        self.queues = [-1] * count
        self.levels = [0] * count
        self.requested_levels: dict[int, int] = {}
        self.faults: dict[int, DueTimeError] = {}
        self.groups: dict[int, Group] = {}
        # Routes of messages whose queues have different numbers on their shards.
        self.renumbered: dict[int, Route] = {}
        # The first accepted message with each topic and id that a sender gave, and which later ones repeat it.
        self.firsts: dict[tuple[str, str], int] = {}
        self.repeats: dict[int, int] = {}
        # Indices of messages whose shard does not know their topic yet, by topic and shard.
        self.unready: dict[tuple[str, int], list[int]] = {}


class Encoder:
    """Admits drafts, chooses their queues and makes their records."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._levels = rules.levels
        self._body_bytes_min = rules.body_bytes_min
        self._ids = rules.ids
        # Tags that were found right, as they stand in the properties.
        self._tags: dict[str, str] = {"": ""}

    def pack(self, request: Request, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes) -> Packed | None:
        """The whole request as records, if its face can do that; None: it is to be encoded draft by draft."""
        self._ids.renew()
        return request.pack(self._rules, routes, arrived_at_ms, born_host)

    def encode(self, batch: Batch, indices: Iterable[int], routes: Mapping[str, Route | DueTimeError]) -> None:
        """Puts each draft into the group of its shard, or among the faults or the unready.

        `routes`: of each topic among the drafts, or why it has none.
        """
        self._ids.renew()
        drafts = batch.drafts
        encode_one = self._encode
        for index in indices:
            draft = drafts[index]
            route = routes[draft.topic]
            if isinstance(route, Route):
                encode_one(batch, index, draft, route)
            else:
                batch.faults[index] = self._fault(draft, None, route) or route

    def _encode(self, batch: Batch, index: int, draft: Draft, route: Route) -> None:
        body, message_id, tags, keys = draft.body, draft.id, draft.tags, draft.keys
        sharding_key, properties, born_at_ms = draft.sharding_key, draft.properties, draft.born_at_ms
        queue, retry = draft.queue, draft.retry
        level = self._level(batch, index, draft)
        text = self._tags.get(tags)
        if (
            text is None
            or level < 0
            or born_at_ms < 0
            or not self._body_bytes_min <= len(body) <= limits.BODY_BYTES_MAX
            or (message_id and not (message_id.isalnum() and len(message_id) <= limits.ID_CHARS_MAX))
            or (queue is not None and not 0 <= queue < route.queue_count)
            or (keys and not all(map(is_word, keys)))
            or (sharding_key and not sharding_key.isprintable())
            or (properties and not _are_plain(properties))
            or (retry is not None and retry_policy.violations("retry", retry))
        ):
            fault = self._fault(draft, route.queue_count)
            if fault is not None:
                batch.faults[index] = fault
                return
            text = self._remember(tags)
        if keys:
            text += f"KEYS\x01{' '.join(keys)}\x02"
        if sharding_key:
            text += f"__SHARDINGKEY\x01{sharding_key}\x02"
        if properties:
            text += "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
        if retry is not None:
            text += f"{record.RETRY}\x01{retry_policy.render(retry)}\x02"
        named = message_id
        if not message_id:
            message_id = batch.ids[index] or self._ids.make()
        encoded = f"{text}UNIQ_KEY\x01{message_id}".encode()
        if len(encoded) > (_PROPERTIES_BYTES_MAX_DELAYED if level else _PROPERTIES_BYTES_MAX):
            batch.faults[index] = self._certain_fault(draft, route.queue_count)
            return
        if named and (first := batch.firsts.setdefault((draft.topic, named), index)) != index:
            batch.ids[index], batch.repeats[index] = named, first
            return
        if queue is None:
            queue = batch.queues[index]
            if queue < 0:
                queue = route.choose(sharding_key, message_id)
        batch.ids[index], batch.queues[index], batch.levels[index] = message_id, queue, level

        if route.renumbered:
            batch.renumbered[index] = route
        shard, queue = route.places[queue]
        store_host = route.store_hosts.get(shard)
        if store_host is None:
            batch.unready.setdefault((route.topic, shard), []).append(index)
            return
        group = batch.groups.get(shard)
        if group is None:
            group = batch.groups[shard] = Group(batch.born_host, store_host)
        topic = route.topic_field
        if level:
            encoded += route.deferral(level, queue)
            topic, queue = _LANE_TOPIC_FIELD, lanes.queue_of(level)
        encoded += record.CRC_ENDING
        born_at_ms = born_at_ms or batch.arrived_at_ms
        group.records.append(group.maker.make(draft.flag, born_at_ms, body, topic, queue, encoded))
        group.indices.append(index)

    def _level(self, batch: Batch, index: int, draft: Draft) -> int:
        """The level to apply, 0 for none; -1: the delay that is asked for is wrong."""
        if draft.deliver_at_ms is not None:
            return -1
        if draft.delay_ms:
            found = self._levels.level_of(draft.delay_ms)
            return -1 if found is None else found
        level = draft.delay_level
        if level > self._levels.highest:
            batch.requested_levels[index] = level
            return self._levels.highest
        return level

    def _remember(self, tags: str) -> str:
        text = f"TAGS\x01{tags}\x02" if tags else ""
        if len(tags) <= _TAG_CHARS_REMEMBERED_MAX:
            if len(self._tags) >= _TAGS_REMEMBERED_MAX:
                self._tags = {"": ""}
            self._tags[tags] = text
        return text

    def _fault(
        self, draft: Draft, queue_count: int | None, no_route: DueTimeError | None = None
    ) -> DueTimeError | None:
        """All that is wrong with the draft; None: nothing is."""
        found = violations(draft, self._levels, queue_count, self._body_bytes_min)
        if not found:
            return None
        unbuilt = [violation for violation in found if violation.field == "deliver_at_ms"]
        if len(unbuilt) == len(found):
            return Unsupported(found)
        if no_route is not None:
            found.extend(violation for violation in no_route.violations if violation not in found)
        return InvalidArgument(found, reason="MESSAGE_INVALID")

    def _certain_fault(self, draft: Draft, queue_count: int) -> DueTimeError:
        fault = self._fault(draft, queue_count)
        assert fault is not None, "the encoder refuses what admission accepts"
        return fault


def _are_plain(properties: Mapping[str, str]) -> bool:
    """Whether all names and values are right beyond doubt."""
    if not record.RESERVED_PROPERTIES.isdisjoint(properties):
        return False
    return all(name and value and name.isprintable() and value.isprintable() for name, value in properties.items())
