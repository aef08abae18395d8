"""The Gateway's gRPC surface for analysis: shards, their files forwarded as bytes, and Spark's reports."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from duetime.v1 import backlog_pb2, reports_pb2, store_pb2
from duetime.v1 import export_pb2 as pb
from duetime_core.access.callers import sharer
from duetime_core.errors import DueTimeError, NotFound
from duetime_core.rpc.decoding import decode

from duetime_gateway.administration.backlog import BacklogComparer
from duetime_gateway.administration.reports import JobReports
from duetime_gateway.face.callers import Context, remaining_ms
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

# Timeout for listing files: a directory with many topics takes a while.
LIST_TIMEOUT_MS = 60_000


class AnalysisService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, shards: Shards, backlog: BacklogComparer, reports: JobReports, metrics: GatewayMetrics) -> None:
        self._shards = shards
        self._backlog = backlog
        self._reports = reports
        self._metrics = metrics

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Forwarded requests are decoded only for the shard's number."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "ListShards": unary(
                self.list_shards, pb.ListShardsRequest.FromString, pb.ListShardsResponse.SerializeToString
            ),
            "ListFiles": unary(self.list_files),
            "Export": stream(self.export),
            "GetBacklogReport": unary(
                self.get_backlog_report,
                backlog_pb2.GetBacklogReportRequest.FromString,
                backlog_pb2.GetBacklogReportResponse.SerializeToString,
            ),
            "GetReports": unary(
                self.get_reports,
                reports_pb2.GetReportsRequest.FromString,
                reports_pb2.GetReportsResponse.SerializeToString,
            ),
        }

    async def list_shards(self, request: pb.ListShardsRequest, context: Context) -> pb.ListShardsResponse:
        shards = self._shards.all()
        answers = await asyncio.gather(*(_answers(shard) for shard in shards))
        away = [shard.number for shard, answers_ in zip(shards, answers, strict=True) if not answers_]
        return pb.ListShardsResponse(shards=self._shards.numbers, unreachable_shards=away)

    async def list_files(self, data: bytes, context: Context) -> bytes:
        shard = self._shard(decode(pb.ListFilesRequest.FromString, data).shard)
        remaining = remaining_ms(context)
        return await shard.store.list_files(
            data, LIST_TIMEOUT_MS if remaining is None else min(remaining, LIST_TIMEOUT_MS)
        )

    async def export(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        shard = self._shard(decode(pb.ExportRequest.FromString, data).shard)
        async for chunk in shard.store.export(data, remaining_ms(context), sharer(context.peer())):
            self._metrics.export_bytes.inc(len(chunk))
            yield chunk

    async def get_backlog_report(
        self, request: backlog_pb2.GetBacklogReportRequest, context: Context
    ) -> backlog_pb2.GetBacklogReportResponse:
        return await self._backlog.get()

    async def get_reports(
        self, request: reports_pb2.GetReportsRequest, context: Context
    ) -> reports_pb2.GetReportsResponse:
        return await self._reports.get()

    def _shard(self, number: int) -> Shard:
        if number not in self._shards.numbers:
            raise NotFound(f"shard {number} is not one of {self._shards.numbers}", reason="SHARD_NOT_FOUND")
        return self._shards.get(number)


async def _answers(shard: Shard) -> bool:
    try:
        await shard.store.ask("Describe", store_pb2.DescribeRequest())
    except DueTimeError:
        return False
    return True
