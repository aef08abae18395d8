"""Files of shards through the gateway: passed on as they are, refused as their store does, ended with the gateway."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import export_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.rpc.calls import translate

from tests.gateway.conftest import MIB, Gateway, error_of, message, real_store

LOG = "commitlog/" + "0" * 20


def export(gateway: Gateway, path: str = LOG, **options: Any) -> Any:
    return gateway.stub.Export(pb.ExportRequest(path=path, **options), timeout=60)


async def bytes_of(gateway: Gateway, *range_: Any, **options: Any) -> bytes:
    return b"".join([chunk.data async for chunk in export(gateway, *range_, **options)])


async def test_files_of_each_shard_are_given_as_they_are(two_shards: Gateway) -> None:
    await two_shards.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=2))
    await two_shards.send(*(message(bytes(900), queue=n % 2) for n in range(3_000)))
    assert list((await two_shards.stub.ListShards(pb.ListShardsRequest())).shards) == [0, 1]
    for shard in range(2):
        root = two_shards.root / f"store-{shard}"
        files = (await two_shards.stub.ListFiles(pb.ListFilesRequest(shard=shard))).files
        assert LOG in [file.path for file in files]
        for file in files:
            content = (root / file.path).read_bytes()[: file.written_bytes]
            assert await bytes_of(two_shards, file.path, shard=shard) == content
        assert (
            await bytes_of(two_shards, shard=shard, offset=100, length=MIB)
            == (root / LOG).read_bytes()[100 : 100 + MIB]
        )
    assert two_shards.metric("duetime_gateway_export_bytes_total") > 3_000 * 900


@pytest.mark.parametrize(
    ("path", "shard", "code", "reason"),
    [
        (LOG, 7, grpc.StatusCode.NOT_FOUND, "SHARD_NOT_FOUND"),
        ("commitlog/" + "9" * 20, 0, grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"),
        ("../meta.db", 0, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    ],
)
async def test_refusals_come_as_the_store_gave_them(
    gateway: Gateway, path: str, shard: int, code: grpc.StatusCode, reason: str
) -> None:
    error = await error_of(bytes_of(gateway, path, shard=shard))
    assert (error.code(), translate(error, "gateway", "").reason) == (code, reason)


async def test_files_of_an_unknown_shard_are_not_listed(gateway: Gateway) -> None:
    error = await error_of(gateway.stub.ListFiles(pb.ListFilesRequest(shard=3)))
    assert translate(error, "gateway", "").reason == "SHARD_NOT_FOUND"


async def test_list_names_an_unavailable_shard_and_its_files_fail(tmp_path: Path) -> None:
    async with real_store(tmp_path, 1) as second:
        async with real_store(tmp_path, 0) as first:
            stores = {0: first.port, 1: second.port}
        async with Gateway(tmp_path, stores, store_timeout_ms=1_000) as gateway:
            answer = await gateway.stub.ListShards(pb.ListShardsRequest())
            assert (list(answer.shards), list(answer.unreachable_shards)) == ([0, 1], [0])
            error = await error_of(bytes_of(gateway, shard=0))
            assert translate(error, "gateway", "").reason == "SHARD_UNAVAILABLE"
            assert await bytes_of(gateway, "abort", shard=1) == b""


@pytest.mark.parametrize("end", ["reader", "gateway", "store"])
async def test_stream_ends_on_both_sides(tmp_path: Path, end: str) -> None:
    (tmp_path / "store-0").mkdir()
    (tmp_path / "store-0" / "timerwheel").write_bytes(bytes(64 * MIB))
    async with (
        real_store(tmp_path, export_bytes_per_s=MIB, drain_ms=600_000) as store,
        Gateway(tmp_path, {0: store.port}, drain_ms=600_000) as gateway,
    ):
        call = export(gateway, "timerwheel")
        assert await call.read()
        if end == "reader":
            call.cancel()
        elif end == "gateway":
            await gateway.node.stop()
        else:
            store.parts.exporter.end()
        if end != "reader":
            error = await error_of(all_of(call))
            assert translate(error, "gateway", "").reason == "STOPPING"
        async with asyncio.timeout(60):
            while store.registry.get_sample_value("duetime_store_exports"):
                await asyncio.to_thread(list)


async def all_of(call: Any) -> None:
    while await call.read():
        pass
