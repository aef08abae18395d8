"""The external scaler for KEDA, which asks for the amount of work and sets the number of pods.

`within` counts the pending entries of all lanes that are due or will be within a time, by each store's own clock. The
count is exact and known in advance: a pod started now serves them when they fall due.

`group` counts the messages that a group still has to finish: unread, leased, or waiting for a retry. A pod with
messages in progress is never idle to KEDA. A trigger with both reports the greater count, as KEDA itself does with two
triggers.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from duetime.v1 import externalscaler_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_format.admission import group_violations, topic_violations
from duetime_format.lengths import parse_ms
from duetime_format.limits import LANES_AHEAD_MS_MAX
from duetime_format.texts import shown

from duetime_gateway.administration.lanes import lanes_of
from duetime_gateway.administration.work import GroupWork
from duetime_gateway.errors import shard_unavailable
from duetime_gateway.shards.shards import Shards

SERVICE_NAME = "externalscaler.ExternalScaler"
METRIC, GROUP_METRIC = "duetime-due", "duetime-group"
STREAM_PERIOD_MS = 5_000
# Suffix of settings whose value KEDA took from a variable of the pod.
_FROM_ENV = "FromEnv"
# KEDA's own settings, which it passes along with the trigger's.
_KEDAS = frozenset(
    {"scalerAddress", "enableTLS", "tlsCertFile", "caCert", "tlsClientCert", "tlsClientKey", "unsafeSsl"}
)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Trigger:
    """The parsed metadata of a trigger. Empty `shards` or `levels`: all."""

    target: float
    activation: int = 0
    # None: lanes are not counted.
    within_ms: int | None = None
    shards: frozenset[int] = frozenset()
    levels: frozenset[int] = frozenset()
    # Empty: no group is counted.
    group: str = ""
    topics: frozenset[str] = frozenset()

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Trigger":
        """Raises: InvalidArgument: unknown names and malformed values."""
        given = {name.removesuffix(_FROM_ENV): value.strip() for name, value in metadata.items()}
        violations = [
            *(
                _fault(name, "is not a setting of this scaler")
                for name in sorted(given.keys() - _SETTINGS.keys() - _KEDAS)
            ),
            *_missing(given.keys()),
        ]
        values: dict[str, Any] = {}
        for name, (field, parse) in _SETTINGS.items():
            if name in given:
                try:
                    values[field] = parse(given[name])
                except ValueError as error:
                    violations.append(_fault(name, str(error)))
        if violations:
            raise InvalidArgument(violations)
        return cls(**values)

    @property
    def metric(self) -> str:
        return METRIC if self.within_ms is not None else GROUP_METRIC

    def has(self, lane: gateway_pb2.Lane) -> bool:
        """Whether a lane counts. A level is the number of its lane; shards are filtered earlier."""
        return not self.levels or lane.level in self.levels


class Scaler:
    """KEDA's service `externalscaler.ExternalScaler`: see proto/duetime/v1/externalscaler.proto."""

    def __init__(self, shards: Shards, work: GroupWork, clock: Clock) -> None:
        self._shards = shards
        self._work = work
        self._clock = clock
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add_to(self, server: grpc.aio.Server) -> None:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        ref = pb.ScaledObjectRef.FromString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "IsActive": unary(self.is_active, ref, pb.IsActiveResponse.SerializeToString),
            "StreamIsActive": stream(self.stream_is_active, ref, pb.IsActiveResponse.SerializeToString),
            "GetMetricSpec": unary(self.get_metric_spec, ref, pb.GetMetricSpecResponse.SerializeToString),
            "StreamMetricSpec": stream(self.stream_metric_spec, ref, pb.GetMetricSpecResponse.SerializeToString),
            "GetMetrics": unary(
                self.get_metrics, pb.GetMetricsRequest.FromString, pb.GetMetricsResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def end(self) -> None:
        """Ends streams: a shutdown does not wait for them."""
        if not self._end.done():
            self._end.set_result(None)

    async def is_active(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._active(Trigger.read(request.scalerMetadata)))

    async def stream_is_active(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """Ends without an error when the gateway stops: KEDA then returns after 2 s, but after errors doubles its wait,
        up to a minute. For the same reason the stream survives shards that do not answer."""
        trigger = Trigger.read(request.scalerMetadata)
        sent: bool | None = None
        while not self._end.done():
            active = await self._known_active(trigger, sent)
            if active is not None and active is not sent:
                sent = active
                yield pb.IsActiveResponse(result=active)
            await self._clock.wait_for(self._end, STREAM_PERIOD_MS)

    async def _known_active(self, trigger: Trigger, before: bool | None) -> bool | None:
        """`before`: returned while the answer is unknown."""
        try:
            return await self._active(trigger)
        except DueTimeError as error:
            if not error.retriable:
                raise
            return before

    async def get_metric_spec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        return _spec(Trigger.read(request.scalerMetadata))

    async def stream_metric_spec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """The target is the trigger's own, so it never changes. KEDA asks again when the stream ends."""
        yield _spec(Trigger.read(request.scalerMetadata))
        await asyncio.wait([self._end])

    async def get_metrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        trigger = Trigger.read(request.scaledObjectRef.scalerMetadata)
        count, away = await self._count(trigger)
        _refuse_unknown(away)
        name = request.metricName or trigger.metric
        value = pb.MetricValue(metricName=name, metricValue=count, metricValueFloat=count)
        return pb.GetMetricsResponse(metricValues=[value])

    async def _active(self, trigger: Trigger) -> bool:
        """Raises: Unavailable: shards do not answer, and the other counts do not decide."""
        count, away = await self._count(trigger)
        if count <= trigger.activation:
            _refuse_unknown(away)
        return count > trigger.activation

    async def _count(self, trigger: Trigger) -> tuple[int, Sequence[int]]:
        """The greater of the trigger's counts, and the shards that did not answer."""
        count, away = 0, set[int]()
        if trigger.within_ms is not None:
            count, away = await self._due(trigger, trigger.within_ms)
        if trigger.group:
            work, missing = await self._work.count(trigger.group, trigger.topics)
            count, away = max(count, work), away.union(missing)
        return count, sorted(away)

    async def _due(self, trigger: Trigger, within_ms: int) -> tuple[int, set[int]]:
        """Entries due within the trigger's time, and the shards that did not answer."""
        unknown = trigger.shards - set(self._shards.numbers)
        if unknown:
            text = f"{sorted(unknown)} are not among the shards {self._shards.numbers}"
            raise InvalidArgument([_fault("shards", text)])
        shards = [shard for shard in self._shards.all() if not trigger.shards or shard.number in trigger.shards]
        answers = await asyncio.gather(*(lanes_of(shard, within_ms) for shard in shards))
        count = sum(lane.due_count for lanes in answers for lane in lanes or () if trigger.has(lane))
        return count, {shard.number for shard, lanes in zip(shards, answers, strict=True) if lanes is None}


def _spec(trigger: Trigger) -> pb.GetMetricSpecResponse:
    spec = pb.MetricSpec(
        metricName=trigger.metric, targetSize=math.ceil(trigger.target), targetSizeFloat=trigger.target
    )
    return pb.GetMetricSpecResponse(metricSpecs=[spec])


def _missing(given: Collection[str]) -> Iterator[Violation]:
    """Settings that are required, in general or by other settings."""
    if "within" not in given and "group" not in given:
        yield _fault("within", "is missing, and so is group: one of them is required")
    if "target" not in given:
        yield _fault("target", "is missing")
    for name, needed in (("shards", "within"), ("levels", "within"), ("topics", "group")):
        if name in given and needed not in given:
            yield _fault(name, f"requires {needed}")


def _fault(name: str, text: str) -> Violation:
    return Violation(f"scalerMetadata.{name}", text)


def _refuse_unknown(away: Sequence[int]) -> None:
    """Raises: Unavailable: counting without these shards would remove pods that they need."""
    if away:
        raise shard_unavailable(f"shards {list(away)} do not answer: the backlog is not known")


def _within(text: str) -> int:
    within_ms = parse_ms(text)
    if within_ms is None or within_ms.denominator != 1 or not within_ms:
        raise ValueError(f"{shown(text)} is not a length above 0 such as 30s or 1h30m")
    if within_ms > LANES_AHEAD_MS_MAX:
        raise ValueError(f"{shown(text)} is longer than {LANES_AHEAD_MS_MAX} ms")
    return int(within_ms)


def _target(text: str) -> float:
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not 0 < target < 2**53:
        raise ValueError(f"{shown(text)} is not a number above 0")
    return target


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ValueError(f"{shown(text)} is not a whole number from 0 on")
    return int(text)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(_count(part.strip()) for part in text.split(","))


def _group(text: str) -> str:
    return _name(text, group_violations("group", text))


def _topics(text: str) -> frozenset[str]:
    names = (name.strip() for name in text.split(","))
    return frozenset(_name(name, topic_violations("topics", name, system=True)) for name in names)


def _name(text: str, violations: Iterator[Violation]) -> str:
    for violation in violations:
        raise ValueError(violation.description)
    return text


# The field of a trigger and the reader of its value, by name in the metadata.
_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "within": ("within_ms", _within),
    "target": ("target", _target),
    "activation": ("activation", _count),
    "shards": ("shards", _numbers),
    "levels": ("levels", _numbers),
    "group": ("group", _group),
    "topics": ("topics", _topics),
}
