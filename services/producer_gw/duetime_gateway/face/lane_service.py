"""The Gateway's gRPC surface for lanes."""

from typing import Any

import grpc
from duetime.v1 import gateway_pb2 as pb
from duetime_core.metadata import Database

from duetime_gateway.administration.lanes import list_lanes, set_paused
from duetime_gateway.face.callers import Context
from duetime_gateway.shards.shards import Shards


class LaneService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, shards: Shards, database: Database) -> None:
        self._shards = shards
        self._database = database

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary, read, write = (
            grpc.unary_unary_rpc_method_handler,
            pb.PauseLaneRequest.FromString,
            pb.PauseLaneResponse.SerializeToString,
        )
        return {
            "PauseLane": unary(self.pause, read, write),
            "ResumeLane": unary(self.resume, read, write),
            "ListLanes": unary(self.list_lanes, pb.ListLanesRequest.FromString, pb.ListLanesResponse.SerializeToString),
        }

    async def pause(self, request: pb.PauseLaneRequest, context: Context) -> pb.PauseLaneResponse:
        return await self._set(request, paused=True)

    async def resume(self, request: pb.PauseLaneRequest, context: Context) -> pb.PauseLaneResponse:
        return await self._set(request, paused=False)

    async def _set(self, request: pb.PauseLaneRequest, *, paused: bool) -> pb.PauseLaneResponse:
        shard = request.shard if request.HasField("shard") else None
        return pb.PauseLaneResponse(shards=await set_paused(self._database, request.level, shard, paused=paused))

    async def list_lanes(self, request: pb.ListLanesRequest, context: Context) -> pb.ListLanesResponse:
        return await list_lanes(self._shards, self._database, request.ahead_ms)
