"""Encodes drafts as records; this path runs for each draft, so it is short. Pure.

An ordinary valid draft passes a cheap test. Only if it fails does `admission` check it against all rules; the draft may
still be valid. A topic has few distinct tags, so each is checked and encoded once.

If a request repeats a topic and id, the first valid draft is encoded, and the others share its result:
`DraftBatch.repeats`. A replacement that differs from the first in content is rejected, as the store does (ADR 64).

Requests packed as a whole by their face (`drafts.PackedRequest`) skip this module. A draft with its own retry policy or
with `replace` is not packed, nor are two messages with one id.

A half message of a transaction has its destination and requested delay in its properties, like a message in a lane; the
store makes the message from it at commit (duetime_format.halves).
"""

from collections.abc import Iterable, Iterator, Mapping

from duetime_core.errors import DueTimeError, IdReused, InvalidArgument, Unsupported, Violation
from duetime_core.rpc import retry_policy
from duetime_format import lanes, limits, priority, record
from duetime_format.admission import (
    CLOCKS_APART_MS,
    Draft,
    Terms,
    are_plain,
    is_delayed,
    is_word,
    lite_topic_of,
    violations,
)
from duetime_format.expiry import EXPIRES_MS_MAX
from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.making import RecordMaker, topic_field
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_lite_topic
from duetime_format.replacing import TRACING

from duetime_gateway.sending.drafts import Drafts, EncodingRules, PackedRequest, Request
from duetime_gateway.shards.route import Route

_TAGS_REMEMBERED_MAX = 16_384
# Longest cached tags; longer ones are checked each time, which bounds the cache.
_TAG_CHARS_REMEMBERED_MAX = 256
_LANE_TOPIC_FIELD = topic_field(SCHEDULE_TOPIC)
_TIMER_TOPIC_FIELD = topic_field(TIMER_TOPIC)
_HALF_TOPIC_FIELD = topic_field(HALF_TOPIC)
_PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX - limits.CHECKSUM_BYTES
_PROPERTIES_BYTES_MAX_DELAYED = limits.PROPERTIES_BYTES_MAX - limits.DEFERRAL_BYTES_MAX
_PROPERTIES_BYTES_MAX_TIMER = limits.PROPERTIES_BYTES_MAX - limits.TIMER_BYTES_MAX
_PROPERTIES_BYTES_MAX_HALF = limits.PROPERTIES_BYTES_MAX - limits.HALF_BYTES_MAX
# Special levels: the message has its own due time; admission must decide.
_TIMER, _DOUBTFUL = -1, -2


class RecordGroup:
    """The records of one request for one shard and one call, in the request's order."""

    __slots__ = ("indices", "maker", "max_waits_ms", "records")

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        self.maker = RecordMaker(born_host, store_host)
        self.indices: list[int] = []
        self.records: list[bytes] = []
        # Longest waits of messages that replace others.
        self.max_waits_ms: list[int] = []

    def add(self, index: int, draft: Draft, born_at_ms: int, topic: bytes, queue: int, properties: bytes) -> None:
        self.records.append(self.maker.make(draft.flag, born_at_ms, draft.body, topic, queue, properties))
        self.indices.append(index)


class DraftBatch:
    """The drafts of one request, and their state so far, by index."""

    def __init__(self, drafts: Drafts, arrived_at_ms: int, born_host: bytes, half: bytes | None = None) -> None:
        """`half`: the drafts are half messages with these properties in common (`half_properties`)."""
        count = len(drafts)
        self.half = half
        self.drafts = drafts
        self.in_runs = drafts.in_runs
        # Route, queue and id of the last message that took a queue in a run.
        self._run: tuple[Route | None, int, str] = None, -1, ""
        self.arrived_at_ms = arrived_at_ms
        self.born_host = born_host
        self.ids = [""] * count
        # -1: not chosen yet.
        self.queues = [-1] * count
        self.levels = [0] * count
        # 0: none.
        self.lanes = [0] * count
        self.requested_levels: dict[int, int] = {}
        self.faults: dict[int, DueTimeError] = {}
        # Records to put, and records that replace others, by shard.
        self.groups: dict[int, RecordGroup] = {}
        self.replacing: dict[int, RecordGroup] = {}
        # Routes of messages whose queues have different numbers on their shards.
        self.renumbered: dict[int, Route] = {}
        # First accepted message by topic and sender's id; then that message's index by repeating one.
        self.firsts: dict[tuple[str, str], int] = {}
        self.repeats: dict[int, int] = {}
        # Indices of messages whose shard does not know their topic yet, by topic and shard.
        self.unready: dict[tuple[str, int], list[int]] = {}

    def choose_in_run(self, route: Route, message_id: str) -> int:
        """The queue for a message of a pack."""
        last, queue, before = self._run
        if last is not route or not route.goes_on(message_id, before):
            queue = route.choose("", message_id)
        self._run = route, queue, message_id
        return queue

    def all_groups(self) -> Iterator[RecordGroup]:
        yield from self.groups.values()
        yield from self.replacing.values()

    def clear_groups(self) -> None:
        """Called after the groups are handed over, or before they are made again."""
        self.groups.clear()
        self.replacing.clear()


class Encoder:
    """Admits drafts, chooses their queues and encodes their records."""

    def __init__(self, rules: EncodingRules) -> None:
        self._rules = rules
        self._levels = rules.levels
        self._body_bytes_min = rules.body_bytes_min
        self._ids = rules.ids
        # Valid tags and their form in the properties.
        self._tags: dict[str, str] = {"": ""}

    def pack(
        self, request: Request, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes
    ) -> PackedRequest | None:
        """Packs the whole request as records, if its face can; None: it must be encoded draft by draft."""
        self._ids.renew()
        return request.pack(self._rules, routes, arrived_at_ms, born_host)

    def choose_one(self, batch: DraftBatch, draft: Draft, route: Route) -> None:
        """Chooses one queue for all drafts of a batch; `draft` is the first."""
        if not draft.id:
            batch.ids[0] = self._ids.make()
        if draft.queue is None:
            batch.queues = [route.choose(draft.sharding_key, draft.id or batch.ids[0])] * len(batch.queues)

    def encode(self, batch: DraftBatch, indices: Iterable[int], routes: Mapping[str, Route | DueTimeError]) -> None:
        """Adds each draft to the group of its shard, to the faults, or to the unready.

        `routes`: the route of each topic among the drafts, or its error.
        """
        self._ids.renew()
        drafts, faults = batch.drafts, batch.faults
        encode_one = self._encode
        for index in indices:
            if index in faults:
                continue
            draft = drafts[index]
            route = routes[draft.topic]
            if isinstance(route, Route):
                encode_one(batch, index, draft, route)
            else:
                faults[index] = self.fault(batch, draft, route) or route

    def _encode(self, batch: DraftBatch, index: int, draft: Draft, route: Route) -> None:
        message_id, tags, keys, queue, retry = draft.id, draft.tags, draft.keys, draft.queue, draft.retry
        sharding_key, properties, urgency = draft.sharding_key, draft.properties, draft.priority
        level = self._level(batch, index, draft, route)
        lite = lite_topic_of(draft) if route.is_lite else draft.lite_topic
        text = self._tags.get(tags)
        if (
            text is None
            or level == _DOUBTFUL
            or draft.born_at_ms < 0
            or not self._body_bytes_min <= len(draft.body) <= limits.BODY_BYTES_MAX
            or (message_id and not (message_id.isalnum() and len(message_id) <= limits.ID_CHARS_MAX))
            or (queue is not None and not 0 <= queue < route.queue_count)
            or (keys and not all(map(is_word, keys)))
            or (sharding_key and (route.has_priorities or not sharding_key.isprintable()))
            or (urgency is not None and not _is_plain(draft, route))
            or (lite and not (route.is_lite and _is_plain_lite(batch, draft, lite)))
            or (properties and not are_plain(properties))
            or (retry is not None and retry_policy.violations("retry", retry))
            or not 0 <= draft.expires_ms <= EXPIRES_MS_MAX
        ):
            fault = self.fault(batch, draft, route)
            if fault is not None:
                batch.faults[index] = fault
                return
            text = self._remember(tags)
            # A valid doubtful draft is a replacement, which needs a lane for any time.
            level = _TIMER if level == _DOUBTFUL else level
        if keys:
            text += f"KEYS\x01{' '.join(keys)}\x02"
        if sharding_key:
            text += f"__SHARDINGKEY\x01{sharding_key}\x02"
        if properties:
            text += "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
        text += _rules(draft)
        if urgency is not None:
            text += f"{priority.PRIORITY}\x01{urgency}\x02"
            queue = route.choose_for_priority(urgency)
        if lite:
            if draft.lite_topic:
                text += f"{record.LITE_TOPIC}\x01{lite}\x02"
            queue = route.choose_for_key(lite)
        named, message_id = message_id, message_id or batch.ids[index] or self._ids.make()
        encoded = f"{text}UNIQ_KEY\x01{message_id}".encode()
        if len(encoded) > (_room(level) if batch.half is None else _room_of_half(message_id)):
            batch.faults[index] = self._certain_fault(batch, draft, route)
            return
        if named and (first := batch.firsts.setdefault((draft.topic, named), index)) != index:
            batch.ids[index] = named
            if draft.replace and _content(draft) != _content(batch.drafts[first]):
                batch.faults[index] = IdReused(draft.topic, keys[0], named)
            else:
                batch.repeats[index] = first
            return
        if queue is None:
            queue = batch.queues[index]
            if queue < 0:
                replace = draft.replace
                if batch.in_runs:
                    queue = batch.choose_in_run(route, message_id)
                else:
                    queue = route.choose_for_key(keys[0]) if replace else route.choose(sharding_key, message_id)
        batch.ids[index], batch.queues[index], batch.levels[index] = message_id, queue, max(level, 0)
        if route.renumbered:
            batch.renumbered[index] = route
        shard, queue = route.places[queue]
        if shard in route.store_hosts:
            self._add(batch, index, draft, route, (shard, queue), level, encoded)
        else:
            batch.unready.setdefault((route.topic, shard), []).append(index)

    def _add(
        self,
        batch: DraftBatch,
        index: int,
        draft: Draft,
        route: Route,
        place: tuple[int, int],
        level: int,
        encoded: bytes,
    ) -> None:
        """Makes the record and adds it to its group. `place`: shard and its queue; `encoded`: the properties so far."""
        shard, queue = place
        topic = route.topic_field
        count = route.timer_lanes.get(shard, 0) if level == _TIMER else 0
        if level == _TIMER and not count:
            batch.faults[index] = self._no_lane(draft, shard)
            return
        if batch.half is not None:
            encoded += self._half(draft, batch.ids[index], level) + batch.half + route.destination(queue)
            topic, queue = _HALF_TOPIC_FIELD, 0
        elif level == _TIMER:
            out, asked = self._timer(draft)
            encoded += asked + route.timer_deferral(out, queue)
            topic, queue = _TIMER_TOPIC_FIELD, queue % count
            batch.lanes[index] = TIMER_LANE_FIRST + queue
        elif level:
            encoded += route.deferral(level, queue)
            topic, queue = _LANE_TOPIC_FIELD, lanes.queue_of(level)
            batch.lanes[index] = level
        groups = batch.replacing if draft.replace else batch.groups
        group = groups.get(shard)
        if group is None:
            group = groups[shard] = RecordGroup(batch.born_host, route.store_hosts[shard])
        group.add(index, draft, draft.born_at_ms or batch.arrived_at_ms, topic, queue, encoded + record.CRC_ENDING)
        if draft.replace:
            group.max_waits_ms.append(draft.max_wait_ms)

    def _level(self, batch: DraftBatch, index: int, draft: Draft, route: Route) -> int:
        """The level to apply; 0: none; or _TIMER or _DOUBTFUL."""
        level, delay_ms, at_ms = draft.delay_level, draft.delay_ms, draft.deliver_at_ms
        if draft.replace or draft.max_wait_ms or (at_ms is not None) + (delay_ms != 0) + (level != 0) > 1:
            return _DOUBTFUL
        limit_ms = route.max_delay_ms
        if at_ms is not None:
            ahead_ms_max = limit_ms or DELAY_MS_MAX + CLOCKS_APART_MS
            return _TIMER if 0 <= at_ms <= batch.arrived_at_ms + ahead_ms_max else _DOUBTFUL
        if delay_ms:
            if not 0 < delay_ms <= (limit_ms or DELAY_MS_MAX):
                return _DOUBTFUL
            return self._levels.level_by_ms.get(delay_ms, _TIMER)
        if level < 0 or (limit_ms and level and limit_ms < self._levels.delay_at_most_ms(level)):
            return _DOUBTFUL
        if level > self._levels.highest:
            batch.requested_levels[index] = level
            return self._levels.highest
        return level

    def _timer(self, draft: Draft) -> tuple[bytes, bytes]:
        """The value of TIMER_OUT_MS, and the property that requests the due time."""
        if draft.deliver_at_ms is not None:
            out = record.timer_out(deliver_at_ms=draft.deliver_at_ms)
            asked = f"\x02{record.TIMER_DELIVER_MS}\x01{draft.deliver_at_ms}"
        else:
            delay_ms = draft.delay_ms or self._levels.delay_at_most_ms(draft.delay_level)
            out = record.timer_out(delay_ms=delay_ms)
            asked = f"\x02{record.TIMER_DELAY_MS}\x01{delay_ms}"
        return out, asked.encode()

    def _half(self, draft: Draft, message_id: str, level: int) -> bytes:
        """The properties specific to a half message: its transaction, and the delay that starts at its commit."""
        asked = b""
        if level == _TIMER:
            _, asked = self._timer(draft)
        elif level:
            asked = b"\x02DELAY\x01%d" % level
        return b"\x02__transactionId__\x01" + message_id.encode() + asked

    def _no_lane(self, draft: Draft, shard: int) -> Unsupported:
        field = "replace" if draft.replace else "delay_ms" if draft.delay_ms else "deliver_at_ms"
        text = f"shard {shard} has no lane for any time; its delay levels are {self._levels}"
        return Unsupported([Violation(field, text)])

    def _remember(self, tags: str) -> str:
        text = f"TAGS\x01{tags}\x02" if tags else ""
        if len(tags) <= _TAG_CHARS_REMEMBERED_MAX:
            if len(self._tags) >= _TAGS_REMEMBERED_MAX:
                self._tags = {"": ""}
            self._tags[tags] = text
        return text

    def fault(self, batch: DraftBatch, draft: Draft, route: Route | DueTimeError) -> DueTimeError | None:
        """All violations of the draft; None: it is valid. `route`: the route or its error."""
        now_ms, least = batch.arrived_at_ms, self._body_bytes_min
        if isinstance(route, Route):
            is_half = batch.half is not None
            types = route.has_priorities, route.is_lite
            terms = Terms(route.queue_count, now_ms, route.max_delay_ms, least, is_half, *types)
            found = violations(draft, self._levels, terms)
        else:
            terms = Terms(None, now_ms, body_bytes_min=least, is_half=batch.half is not None)
            found = violations(draft, self._levels, terms)
            if found:
                found.extend(violation for violation in route.violations if violation not in found)
        return InvalidArgument(found, reason="MESSAGE_INVALID") if found else None

    def _certain_fault(self, batch: DraftBatch, draft: Draft, route: Route) -> DueTimeError:
        fault = self.fault(batch, draft, route)
        assert fault is not None, "the encoder refuses what admission accepts"
        return fault


def _is_plain(draft: Draft, route: Route) -> bool:
    """Whether the draft's priority is right beyond doubt."""
    assert draft.priority is not None, "it has one"
    is_right = route.has_priorities and 0 <= draft.priority <= priority.PRIORITY_MAX
    return is_right and draft.queue is None and not draft.sharding_key and not draft.replace


def _is_plain_lite(batch: DraftBatch, draft: Draft, lite: str) -> bool:
    """Whether the draft's lite topic is right beyond doubt."""
    if not is_lite_topic(lite) or batch.half is not None or is_delayed(draft) or draft.replace:
        return False
    if draft.lite_topic and record.LITE_TOPIC in draft.properties:
        return False
    return draft.queue is None and not draft.sharding_key and draft.priority is None


def _rules(draft: Draft) -> str:
    """The properties with the message's retry policy and expiry."""
    text = ""
    if draft.retry is not None:
        text += f"{record.RETRY}\x01{retry_policy.render(draft.retry)}\x02"
    if draft.expires_ms:
        text += f"{record.EXPIRES}\x01{draft.expires_ms}\x02"
    return text


def _content(draft: Draft) -> tuple[object, ...]:
    """The content that a repeat must have in common with the first send."""
    own = {name: value for name, value in draft.properties.items() if name not in TRACING}
    due = draft.delay_level, draft.delay_ms, draft.deliver_at_ms
    return draft.body, own, draft.tags, tuple(draft.keys), due, draft.retry, draft.replace, draft.expires_ms


def _room(level: int) -> int:
    """Bytes for the properties, without those added by DueTime."""
    if level == _TIMER:
        return _PROPERTIES_BYTES_MAX_TIMER
    return _PROPERTIES_BYTES_MAX_DELAYED if level else _PROPERTIES_BYTES_MAX


def _room_of_half(message_id: str) -> int:
    """As `_room`. The id occurs twice; HALF_BYTES_MAX counts one byte for each of its characters."""
    return _PROPERTIES_BYTES_MAX_HALF - (0 if message_id.isascii() else len(message_id.encode()) - len(message_id))


def half_properties(group: str, check_immunity_s: int) -> bytes:
    """The properties shared by all half messages of a request. `check_immunity_s` 0: the shard's own timeout."""
    found = f"\x02{record.TRAN_MSG}\x01true\x02{record.PRODUCER_GROUP}\x01{group}"
    if check_immunity_s:
        found += f"\x02{record.CHECK_IMMUNITY_S}\x01{check_immunity_s}"
    return found.encode()
