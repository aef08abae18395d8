"""KEDA's questions, asked of a gateway with real stores as KEDA asks them."""

import grpc
import pytest
from duetime.v1 import externalscaler_pb2 as pb
from duetime.v1 import externalscaler_pb2_grpc, gateway_pb2
from duetime_core.serving import make_channel

from tests.gateway.conftest import Gateway, error_of, message, real_store

S10, M1, M5, H2 = 3, 5, 9, 18


def ref(**metadata: str) -> pb.ScaledObjectRef:
    given = {"within": "2m", "target": "10", "scalerAddress": "duetime-gateway:9800"} | metadata
    return pb.ScaledObjectRef(name="consumers", namespace="shop", scalerMetadata=given)


class Keda:
    """What KEDA does with the answers."""

    def __init__(self, gateway: Gateway) -> None:
        self.stub = externalscaler_pb2_grpc.ExternalScalerStub(gateway.channel)

    async def due(self, **metadata: str) -> int:
        request = pb.GetMetricsRequest(scaledObjectRef=ref(**metadata), metricName="s0-duetime-due")
        (value,) = (await self.stub.GetMetrics(request, timeout=10)).metricValues
        assert value.metricName == "s0-duetime-due"
        assert value.metricValueFloat == value.metricValue
        return int(value.metricValue)

    async def active(self, **metadata: str) -> bool:
        return bool((await self.stub.IsActive(ref(**metadata), timeout=10)).result)


async def send(gateway: Gateway, *levels: int) -> None:
    """Messages whose ids spread them over the shards."""
    results = await gateway.send(*(message(id=f"id{at}", delay_level=level) for at, level in enumerate(levels)))
    assert not any(result.HasField("fault") for result in results)


async def test_what_falls_due_within_the_time_counts_on_all_shards(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 6, *[M1] * 3, *[M5] * 2, H2)
    lanes = (await two_shards.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes
    assert len({lane.shard for lane in lanes if lane.pending_count}) == 2
    keda = Keda(two_shards)
    assert [await keda.due(within=within) for within in ("2s", "30s", "2m", "10m", "1d")] == [0, 6, 9, 11, 12]


async def test_shards_and_levels_can_be_chosen(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 6, *[M1] * 3)
    keda = Keda(two_shards)
    by_shard = [await keda.due(shards=shards) for shards in ("0", "1", "0, 1")]
    assert by_shard[0] + by_shard[1] == by_shard[2] == 9
    assert all(by_shard)
    assert [await keda.due(levels=levels) for levels in (f"{S10}", f"{M1},{M5}", f"{H2}")] == [6, 3, 0]


async def test_messages_for_any_time_count_too(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 2)
    results = await two_shards.send(*(message(delay_ms=delay_ms) for delay_ms in (1_500, 90_000, 3 * 86_400_000)))
    assert not any(result.HasField("fault") for result in results)
    keda = Keda(two_shards)
    assert [await keda.due(within=within) for within in ("2s", "30s", "2m", "10d")] == [1, 3, 4, 5]
    assert await keda.due(within="10d", levels="1000") == 3


async def test_target_runs_while_more_is_due_than_its_activation(gateway: Gateway) -> None:
    keda = Keda(gateway)
    assert not await keda.active()
    await send(gateway, M1, M1)
    assert await keda.active()
    assert await keda.active(activation="1")
    assert not await keda.active(activation="2")
    assert not await keda.active(within="10s")


async def test_metric_has_the_target_that_was_asked_for(gateway: Gateway) -> None:
    (spec,) = (await Keda(gateway).stub.GetMetricSpec(ref(target="2.5"), timeout=10)).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("duetime-due", 3, 2.5)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"within": ""}, "within"),
        ({"within": "2"}, "within"),
        ({"within": "3650d"}, "longer than"),
        ({"target": "0"}, "above 0"),
        ({"target": "nan"}, "above 0"),
        ({"activation": "-1"}, "activation"),
        ({"levels": "1,x"}, "levels"),
        ({"shards": "7"}, "[7] are none of the shards [0]"),
        ({"withn": "2m"}, "withn: is not a setting"),
    ],
)
async def test_trigger_that_is_none_is_refused(gateway: Gateway, metadata: dict[str, str], said: str) -> None:
    error = await error_of(Keda(gateway).due(**metadata))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in (error.details() or "")


async def test_missing_settings_are_reported_together(gateway: Gateway) -> None:
    error = await error_of(Keda(gateway).stub.GetMetricSpec(pb.ScaledObjectRef(name="x"), timeout=10))
    assert "within: is missing; scalerMetadata.target: is missing" in (error.details() or "")


async def test_backlog_is_not_known_without_all_shards(tmp_path) -> None:
    async with real_store(tmp_path, 0) as first:
        async with real_store(tmp_path, 1) as second:
            gateway = Gateway(tmp_path, {0: first.port, 1: second.port})
            await gateway.__aenter__()
            keda = Keda(gateway)
            await send(gateway, *[M1] * 8)
        try:
            error = await error_of(keda.due())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "[1]" in (error.details() or "")
            # Enough is known to run, too little to stop.
            assert await keda.active()
            assert (await error_of(keda.active(activation="100"))).code() is grpc.StatusCode.UNAVAILABLE
            assert await keda.due(shards="0") > 0
        finally:
            await gateway.__aexit__()


async def test_stream_answers_at_once_and_ends_with_the_gateway(gateway: Gateway) -> None:
    async with make_channel(f"127.0.0.1:{gateway.node.port}") as channel:
        stream = externalscaler_pb2_grpc.ExternalScalerStub(channel).StreamIsActive(ref())
        assert (await stream.read()).result is False
        await gateway.node.stop()
        error = await error_of(stream.read())
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_stream_reports_a_change(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_gateway.face.scaler.STREAM_PERIOD_MS", 20)
    stream = Keda(gateway).stub.StreamIsActive(ref())
    assert (await stream.read()).result is False
    await send(gateway, M1)
    assert (await stream.read()).result is True
    stream.cancel()
