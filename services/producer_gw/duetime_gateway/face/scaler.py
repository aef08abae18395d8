"""Answers KEDA, which asks how much work there is before it decides on the number of pods.

Counted are the entries of all lanes that are not restored yet and are due, or will be `within`, by each store's own
clock. The count is exact and known in advance: a pod that KEDA starts now serves them when they fall due. Messages that
were restored and wait for a consumer are not counted (see their groups), and topics are not counted apart.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from duetime.v1 import externalscaler_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from duetime_core.errors import InvalidArgument, Violation
from duetime_format.levels import parse_delay_ms
from duetime_format.limits import LANES_AHEAD_MS_MAX
from duetime_format.texts import shown

from duetime_gateway.administration.lanes import lanes_of
from duetime_gateway.errors import shard_unavailable, stopping
from duetime_gateway.shards.shards import Shards

SERVICE_NAME = "externalscaler.ExternalScaler"
METRIC = "duetime-due"
STREAM_PERIOD_MS = 5_000
_OURS = frozenset({"within", "target", "activation", "shards", "levels"})
# KEDA hands over the whole trigger, with what is meant for itself.
_KEDAS = frozenset(
    {"scalerAddress", "enableTLS", "tlsCertFile", "caCert", "tlsClientCert", "tlsClientKey", "unsafeSsl"}
)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Trigger:
    """One trigger's metadata, read. Empty `shards` or `levels`: all."""

    within_ms: int
    target: float
    activation: int = 0
    shards: frozenset[int] = frozenset()
    levels: frozenset[int] = frozenset()

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Trigger":
        """Raises: InvalidArgument: unknown names and malformed values."""
        violations = [
            Violation(f"scalerMetadata.{name}", "is not a setting of this scaler")
            for name in sorted(metadata.keys() - _OURS - _KEDAS)
        ]
        values: dict[str, Any] = {}
        for name, field, parse in (
            ("within", "within_ms", _within),
            ("target", "target", _target),
            ("activation", "activation", _count),
            ("shards", "shards", _numbers),
            ("levels", "levels", _numbers),
        ):
            if name not in metadata:
                if name in ("within", "target"):
                    violations.append(Violation(f"scalerMetadata.{name}", "is missing"))
                continue
            try:
                values[field] = parse(metadata[name].strip())
            except ValueError as error:
                violations.append(Violation(f"scalerMetadata.{name}", str(error)))
        if violations:
            raise InvalidArgument(violations)
        return cls(**values)

    def has(self, lane: gateway_pb2.Lane) -> bool:
        """Whether a lane counts, by its number, which is the level of those that have one; its shard was chosen
        before."""
        return not self.levels or lane.level in self.levels


class Scaler:
    """KEDA's service `externalscaler.ExternalScaler`: see proto/duetime/v1/externalscaler.proto."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add_to(self, server: grpc.aio.Server) -> None:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        ref = pb.ScaledObjectRef.FromString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "IsActive": unary(self.is_active, ref, pb.IsActiveResponse.SerializeToString),
            "StreamIsActive": stream(self.stream_is_active, ref, pb.IsActiveResponse.SerializeToString),
            "GetMetricSpec": unary(self.get_metric_spec, ref, pb.GetMetricSpecResponse.SerializeToString),
            "GetMetrics": unary(
                self.get_metrics, pb.GetMetricsRequest.FromString, pb.GetMetricsResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def end(self) -> None:
        """Streams end now: a stop does not wait for them."""
        if not self._end.done():
            self._end.set_result(None)

    async def is_active(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._active(Trigger.read(request.scalerMetadata)))

    async def stream_is_active(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        trigger = Trigger.read(request.scalerMetadata)
        sent: bool | None = None
        while not self._end.done():
            active = await self._active(trigger)
            if active is not sent:
                sent = active
                yield pb.IsActiveResponse(result=active)
            await self._clock.wait_for(self._end, STREAM_PERIOD_MS)
        raise stopping()

    async def get_metric_spec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        target = Trigger.read(request.scalerMetadata).target
        spec = pb.MetricSpec(metricName=METRIC, targetSize=math.ceil(target), targetSizeFloat=target)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        count, away = await self._count(Trigger.read(request.scaledObjectRef.scalerMetadata))
        _refuse_unknown(away)
        value = pb.MetricValue(metricName=request.metricName or METRIC, metricValue=count, metricValueFloat=count)
        return pb.GetMetricsResponse(metricValues=[value])

    async def _active(self, trigger: Trigger) -> bool:
        """Raises: Unavailable: shards do not answer, and the others' counts do not decide it."""
        count, away = await self._count(trigger)
        if count <= trigger.activation:
            _refuse_unknown(away)
        return count > trigger.activation

    async def _count(self, trigger: Trigger) -> tuple[int, Sequence[int]]:
        """Entries due within the trigger's time, and the shards that did not answer."""
        unknown = trigger.shards - set(self._shards.numbers)
        if unknown:
            text = f"{sorted(unknown)} are none of the shards {self._shards.numbers}"
            raise InvalidArgument([Violation("scalerMetadata.shards", text)])
        shards = [shard for shard in self._shards.all() if not trigger.shards or shard.number in trigger.shards]
        answers = await asyncio.gather(*(lanes_of(shard, trigger.within_ms) for shard in shards))
        count = sum(lane.due_count for lanes in answers for lane in lanes or () if trigger.has(lane))
        return count, [shard.number for shard, lanes in zip(shards, answers, strict=True) if lanes is None]


def _refuse_unknown(away: Sequence[int]) -> None:
    """Raises: Unavailable: a count without these shards would scale down what they need."""
    if away:
        raise shard_unavailable(f"shards {list(away)} do not answer: the backlog is not known")


def _within(text: str) -> int:
    within_ms = parse_delay_ms(text)
    if within_ms > LANES_AHEAD_MS_MAX:
        raise ValueError(f"{shown(text)} is longer than {LANES_AHEAD_MS_MAX} ms")
    return within_ms


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
