"""Queries the gateway for messages due in a range, in a user's name, and caches the answers briefly."""

from collections import OrderedDict

from duetime.v1 import pending_pb2
from duetime_core.clock import Clock

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.overview.history import ClusterHistory, PastSpan
from duetime_console.overview.picture import Picture, TopicBucket, add_older, paint
from duetime_console.overview.prometheus import STEP_MS_MIN, Prometheus

KEPT_MAX = 64
# Up to this length a range with few messages is read message by message.
NEAR_MS = 60_000
NAMES_MAX = 1_000
# Shards count the next ten minutes by second, for all topics together, and later times by minute.
BY_SECOND_MS = 600_000
# Tolerance for a browser's "ten minutes ago", which is a little older on arrival.
_SLACK_MS = 5_000
_SECOND_MS, _MINUTE_MS = 1_000, 60_000


class Pictures:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        history: ClusterHistory,
        clock: Clock,
        keep_ms: int,
        prometheus: Prometheus | None = None,
    ) -> None:
        """`prometheus`: the source of the past beyond the history; None: there is none."""
        self._gateway = gateway
        self._history = history
        self._clock = clock
        self._keep_ms = keep_ms
        self._prometheus = prometheus
        self._kept: OrderedDict[tuple[int, int, str, str], tuple[float, Picture]] = OrderedDict()

    async def get(self, from_ms: int, before_ms: int, topic: str, token: str, *, with_past: bool) -> Picture:
        """The picture of all topics, or of one. `with_past`: add the past of the whole cluster.

        Raises:
            GatewayError.
        """
        key = from_ms, before_ms, topic, token
        now_ms = self._clock.monotonic_ms()
        if (kept := self._kept.get(key)) is not None and now_ms - kept[0] < self._keep_ms:
            return kept[1]
        made = await self._ask(from_ms, before_ms, topic, token, with_past=with_past and not topic)
        self._kept[key] = (now_ms, made)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return made

    async def _ask(self, from_ms: int, before_ms: int, topic: str, token: str, *, with_past: bool) -> Picture:
        length_ms = before_ms - from_ms
        # All topics together for a range of seconds: single topics are counted by minute.
        together = not topic and length_ms <= BY_SECOND_MS
        request = pending_pb2.BacklogRequest(
            topic=topic,
            due_from_ms=from_ms,
            due_before_ms=before_ms,
            all_topics_together=together,
            all_lanes_together=True,
        )
        answer = await self._gateway.call("Backlog", request, token)
        buckets = [TopicBucket(one.due_from_ms, one.width_ms, one.topic, one.count) for one in answer.buckets]
        finest_ms = min((one.width_ms for one in buckets), default=_SECOND_MS)
        if length_ms <= NEAR_MS:
            messages = await self._messages(from_ms, before_ms, topic, token)
            if messages is not None:
                buckets, finest_ms = messages, 1
        width_ms, unknown_ms = self._past_of(from_ms, before_ms, answer.now_ms)
        asks_older = with_past and self._prometheus is not None and width_ms == _MINUTE_MS and from_ms < unknown_ms
        past = self._history.between(from_ms, before_ms, width_ms) if with_past else []
        finest_ms = _finest_ms(finest_ms, past, STEP_MS_MIN if asks_older else 1)
        made = paint(buckets, past, from_ms, before_ms, answer.now_ms, finest_ms)
        made.unreachable_shards = list(answer.unreachable_shards)
        if asks_older:
            await self._add_older(made, unknown_ms)
        return made

    def _past_of(self, from_ms: int, before_ms: int, now_ms: int) -> tuple[int, int]:
        """Whether a range's past is by second or by minute, and the end of its unknown part."""
        is_short = before_ms - from_ms <= BY_SECOND_MS * 2
        is_recent = from_ms >= now_ms - self._history.seconds.length_ms - _SLACK_MS
        width_ms = _SECOND_MS if is_short and is_recent else _MINUTE_MS
        return width_ms, min(before_ms, self._history.known_from_ms(now_ms, width_ms))

    async def _add_older(self, made: Picture, unknown_ms: int) -> None:
        assert self._prometheus is not None, "it is asked"
        steps = -(-(unknown_ms - made.from_ms) // made.step_ms)
        older = await self._prometheus.between(made.from_ms, made.step_ms, steps)
        add_older(made, older.counts)
        made.past_fault = older.fault

    async def _messages(self, from_ms: int, before_ms: int, topic: str, token: str) -> list[TopicBucket] | None:
        """A bucket for each message; None: there are too many, or the user may not read them."""
        wanted = pending_pb2.PendingFilter(topic=topic, due_from_ms=from_ms, due_before_ms=before_ms)
        request = pending_pb2.ListPendingRequest(filter=wanted, max_count=NAMES_MAX, omit_bodies=True)
        try:
            answer = await self._gateway.call("ListPending", request, token)
        except GatewayError as error:
            if error.code == "PERMISSION_DENIED":
                return None
            raise
        if answer.next_page_token:
            return None
        return [TopicBucket(one.message.due_at_ms, 1, one.message.topic, 1) for one in answer.messages]


def _finest_ms(finest_ms: int, past: list[PastSpan], least_ms: int) -> int:
    """The shortest step that buckets and the past allow. If messages are shown one by one, seconds of the past are
    shown at their start."""
    width_ms = max(min((one.width_ms for one in past), default=1), least_ms)
    return finest_ms if finest_ms < _SECOND_MS and width_ms <= _SECOND_MS else max(finest_ms, width_ms)
