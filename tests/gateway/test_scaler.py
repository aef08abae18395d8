"""KEDA's questions, asked of a gateway with real stores as KEDA asks them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml
from duetime.v1 import externalscaler_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.errors import Unavailable
from duetime_core.rpc.serving import make_channel
from duetime_gateway.face.scaler import Trigger

from tests.gateway.conftest import Gateway, error_of, message, real_store, tapped_store, until
from tests.gateway.keda import Keda
from tests.tidy.sources import PROJECT

S10, M1, M5, H2 = 3, 5, 9, 18


async def send(gateway: Gateway, *levels: int) -> None:
    """Messages whose ids spread them over the shards."""
    results = await gateway.send(*(message(id=f"id{at}", delay_level=level) for at, level in enumerate(levels)))
    assert not any(result.HasField("fault") for result in results)


async def test_messages_due_within_the_time_count_on_all_shards(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 6, *[M1] * 3, *[M5] * 2, H2)
    lanes = (await two_shards.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes
    assert len({lane.shard for lane in lanes if lane.pending_count}) == 2
    keda = Keda(two_shards.channel)
    assert [await keda.count(within=within) for within in ("2s", "30s", "2m", "10m", "1w")] == [0, 6, 9, 11, 12]


async def test_shards_and_levels_can_be_chosen(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 6, *[M1] * 3)
    keda = Keda(two_shards.channel)
    by_shard = [await keda.count(shards=shards) for shards in ("0", "1", "0, 1")]
    assert by_shard[0] + by_shard[1] == by_shard[2] == 9
    assert all(by_shard)
    assert [await keda.count(levels=levels) for levels in (f"{S10}", f"{M1},{M5}", f"{H2}")] == [6, 3, 0]


async def test_messages_for_any_time_count_too(two_shards: Gateway) -> None:
    await send(two_shards, *[S10] * 2)
    results = await two_shards.send(*(message(delay_ms=delay_ms) for delay_ms in (1_500, 90_000, 3 * 86_400_000)))
    assert not any(result.HasField("fault") for result in results)
    keda = Keda(two_shards.channel)
    assert [await keda.count(within=within) for within in ("2s", "30s", "2m", "10d")] == [1, 3, 4, 5]
    assert await keda.count(within="10d", levels="1000") == 3


async def test_target_runs_while_more_is_due_than_its_activation(gateway: Gateway) -> None:
    keda = Keda(gateway.channel)
    assert not await keda.active()
    await send(gateway, M1, M1)
    assert await keda.active()
    assert await keda.active(activation="1")
    assert not await keda.active(activation="2")
    assert not await keda.active(within="10s")


async def test_metric_has_the_target_that_was_asked_for(gateway: Gateway) -> None:
    spec = await Keda(gateway.channel).metric(target="2.5")
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
        ({"shards": "7"}, "[7] are not among the shards [0]"),
        ({"withn": "2m"}, "withn: is not a setting"),
        ({"withnFromEnv": "2m"}, "withn: is not a setting"),
        ({"topics": "orders"}, "topics: requires group"),
        ({"group": "a b"}, "group: 'a b' is not 1 to"),
        ({"group": "g", "topics": "orders,"}, "topics: "),
    ],
)
async def test_invalid_trigger_is_rejected(gateway: Gateway, metadata: dict[str, str], said: str) -> None:
    error = await error_of(Keda(gateway.channel).count(**metadata))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in (error.details() or "")


async def test_values_from_variables_of_the_pod_count(gateway: Gateway) -> None:
    """KEDA appends FromEnv to the names of such settings."""
    await send(gateway, M1)
    keda = Keda(gateway.channel, scalerAddressFromEnv="duetime-gateway:9800", withinFromEnv="2m", target="10")
    assert await keda.count() == 1


@pytest.mark.parametrize("file", ["docs/kubernetes.md", "deploy/k8s/components/keda/scheduler.yaml"])
def test_documented_triggers_can_be_read(file: str) -> None:
    text = (PROJECT / file).read_text()
    parts = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S) if file.endswith(".md") else [text]
    scaled = [one for part in parts for one in yaml.safe_load_all(part) if one.get("kind") == "ScaledObject"]
    assert scaled
    for trigger in (trigger for one in scaled for trigger in one["spec"]["triggers"]):
        # KEDA's metadata has texts only.
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert Trigger.read(trigger["metadata"]).within_ms


async def test_missing_settings_are_reported_together(gateway: Gateway) -> None:
    error = await error_of(Keda(gateway.channel).stub.GetMetricSpec(pb.ScaledObjectRef(name="x"), timeout=60))
    assert "within: is missing, and so is group" in (error.details() or "")
    assert "target: is missing" in (error.details() or "")


async def test_backlog_is_not_known_without_all_shards(tmp_path) -> None:
    async with real_store(tmp_path, 0) as first:
        async with real_store(tmp_path, 1) as second:
            gateway = Gateway(tmp_path, {0: first.port, 1: second.port})
            await gateway.__aenter__()
            keda = Keda(gateway.channel)
            await send(gateway, *[M1] * 8)
        try:
            error = await error_of(keda.count())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "[1]" in (error.details() or "")
            # Enough is known to run, too little to stop.
            assert await keda.active()
            assert (await error_of(keda.active(activation="100"))).code() is grpc.StatusCode.UNAVAILABLE
            assert await keda.count(shards="0") > 0
        finally:
            await gateway.__aexit__()


@pytest.fixture
async def draining(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that waits for its calls when it stops, as outside of tests."""
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, drain_ms=60_000) as gateway:
        yield gateway


async def test_streams_answer_at_once_and_end_without_an_error_when_the_gateway_stops(draining: Gateway) -> None:
    async with make_channel(f"127.0.0.1:{draining.node.port}") as channel:
        keda = Keda(channel)
        active, metric = keda.stub.StreamIsActive(keda.ref()), keda.stub.StreamMetricSpec(keda.ref())
        assert (await active.read()).result is False
        assert list((await metric.read()).metricSpecs) == [await keda.metric()]
        await draining.node.stop()
        assert await active.read() is await metric.read() is grpc.aio.EOF
        assert await active.code() is await metric.code() is grpc.StatusCode.OK


async def test_cancelled_metric_stream_leaves_the_others_open(draining: Gateway) -> None:
    keda = Keda(draining.channel)
    cancelled, kept = (keda.stub.StreamMetricSpec(keda.ref()) for _ in range(2))
    for stream in (cancelled, kept):
        await stream.read()
    cancelled.cancel()
    await draining.node.stop()
    assert await kept.read() is grpc.aio.EOF


async def test_stream_reports_a_change(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_gateway.face.scaler.STREAM_PERIOD_MS", 20)
    keda = Keda(gateway.channel)
    stream = keda.stub.StreamIsActive(keda.ref())
    assert (await stream.read()).result is False
    await send(gateway, M1)
    assert (await stream.read()).result is True
    stream.cancel()


async def test_stream_outlasts_a_shard_that_does_not_answer(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_gateway.face.scaler.STREAM_PERIOD_MS", 20)
    async with tapped_store(tmp_path) as tap, Gateway(tmp_path, {0: tap.port}) as gateway:
        keda = Keda(gateway.channel)
        stream = keda.stub.StreamIsActive(keda.ref())
        assert (await stream.read()).result is False
        tap.refuse(Unavailable("the shard restarts"), "ListLanes")
        asked = len(tap.requests["ListLanes"])
        await until(gateway, lambda: len(tap.requests["ListLanes"]) > asked + 1)
        assert (await error_of(keda.active())).code() is grpc.StatusCode.UNAVAILABLE
        await send(gateway, M1)
        tap.accept()
        assert (await stream.read()).result is True
        stream.cancel()
