"""KEDA's side of the external scaler contract: the calls of a trigger with given metadata."""

import grpc
from duetime.v1 import externalscaler_pb2 as pb
from duetime.v1 import externalscaler_pb2_grpc

from tests.tap import WAIT_S

DUE = {"within": "2m", "target": "10", "scalerAddress": "duetime-gateway:9800"}


class Keda:
    """A trigger, which KEDA calls by `channel`."""

    def __init__(self, channel: grpc.aio.Channel, **metadata: str) -> None:
        self.stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
        self._metadata = metadata or DUE

    def ref(self, **more: str) -> pb.ScaledObjectRef:
        return pb.ScaledObjectRef(name="consumers", namespace="shop", scalerMetadata=self._metadata | more)

    async def count(self, **more: str) -> int:
        request = pb.GetMetricsRequest(scaledObjectRef=self.ref(**more), metricName="duetime-due")
        (value,) = (await self.stub.GetMetrics(request, timeout=WAIT_S)).metricValues
        assert value.metricName == "duetime-due"
        assert value.metricValueFloat == value.metricValue
        return int(value.metricValue)

    async def active(self, **more: str) -> bool:
        return bool((await self.stub.IsActive(self.ref(**more), timeout=WAIT_S)).result)

    async def metric(self, **more: str) -> pb.MetricSpec:
        (spec,) = (await self.stub.GetMetricSpec(self.ref(**more), timeout=WAIT_S)).metricSpecs
        return spec
