"""The Gateway's gRPC surface for consumers: leases, groups, and calls forwarded to the retry service."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from duetime.v1 import consumer_pb2 as pb
from duetime_core.access.callers import sharer
from duetime_core.limits.room import Room
from duetime_core.limits.seats import Seats
from duetime_format.limits import PULL_BYTES_MAX

from duetime_gateway.access import permit
from duetime_gateway.access.grants import ANY_RIGHT, Kind
from duetime_gateway.administration.groups import ConsumerGroups
from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.face.answering import room_for, room_in_turn
from duetime_gateway.face.callers import Context, remaining_ms
from duetime_gateway.face.reads import encoded_statuses, extension_of, receive_of
from duetime_gateway.shards.retry import RetryClient

# Redrives and discards of dead letters at a time.
LETTER_JOBS_MAX = 16


class ConsumerService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, leases: LeaseRouter, groups: ConsumerGroups, retry: RetryClient, answers: Room) -> None:
        self._answers = answers
        self._leases = leases
        self._groups = groups
        self._retry = retry
        what = "calls of RedriveDeadLetters and DiscardDeadLetters are running"
        self._letter_jobs = Seats(LETTER_JOBS_MAX, what, reason="LETTERS_EXHAUSTED")

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Forwarded requests are not decoded."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "Receive": unary(self.receive, pb.ReceiveRequest.FromString),
            "Ack": unary(self.ack, pb.AckRequest.FromString),
            "ChangeInvisible": unary(self.change_invisible, pb.ChangeInvisibleRequest.FromString),
            "Nack": unary(self.nack),
            "SendBack": unary(self.send_back),
            "ListDeadLetters": unary(self.list_dead_letters),
            "RedriveDeadLetters": stream(self.redrive_dead_letters),
            "DiscardDeadLetters": stream(self.discard_dead_letters),
            "CreateGroup": unary(self.create_group, pb.CreateGroupRequest.FromString, pb.Group.SerializeToString),
            "UpdateGroup": unary(self.update_group, pb.UpdateGroupRequest.FromString, pb.Group.SerializeToString),
            "ListGroups": unary(
                self.list_groups, pb.ListGroupsRequest.FromString, pb.ListGroupsResponse.SerializeToString
            ),
            "DescribeGroup": unary(
                self.describe_group, pb.DescribeGroupRequest.FromString, pb.GroupDescription.SerializeToString
            ),
            "ResetGroup": unary(
                self.reset_group, pb.ResetGroupRequest.FromString, pb.ResetGroupResponse.SerializeToString
            ),
            "LimitGroup": unary(self.limit_group, pb.LimitGroupRequest.FromString, pb.Group.SerializeToString),
            "DeclareGroupLimits": unary(
                self.declare_limits, pb.DeclareGroupLimitsRequest.FromString, pb.Group.SerializeToString
            ),
            "PauseGroup": unary(self.pause_group, pb.PauseGroupRequest.FromString, pb.GroupPauses.SerializeToString),
            "ResumeGroup": unary(self.resume_group, pb.ResumeGroupRequest.FromString, pb.GroupPauses.SerializeToString),
            "DeleteGroup": unary(
                self.delete_group, pb.DeleteGroupRequest.FromString, pb.DeleteGroupResponse.SerializeToString
            ),
        }

    async def receive(self, request: pb.ReceiveRequest, context: Context) -> bytes:
        peer, receive = context.peer(), receive_of(request)
        with await room_for(self._answers, peer, receive.selection, remaining_ms(context)):
            return await self._leases.receive(receive, remaining_ms(context), peer)

    async def ack(self, request: pb.AckRequest, context: Context) -> bytes:
        return encoded_statuses(await self._leases.ack(request.group, list(request.receipts), remaining_ms(context)))

    async def change_invisible(self, request: pb.ChangeInvisibleRequest, context: Context) -> bytes:
        return encoded_statuses(await self._leases.extend(extension_of(request), remaining_ms(context)))

    async def nack(self, data: bytes, context: Context) -> bytes:
        return await self._retry.forward("Nack", data, remaining_ms(context), sharer(context.peer()))

    async def send_back(self, data: bytes, context: Context) -> bytes:
        return await self._retry.forward("SendBack", data, remaining_ms(context), sharer(context.peer()))

    async def list_dead_letters(self, data: bytes, context: Context) -> bytes:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            return await self._retry.forward("ListDeadLetters", data, remaining_ms(context), sharer(context.peer()))

    def redrive_dead_letters(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        return self._letter_job("RedriveDeadLetters", data, context)

    def discard_dead_letters(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        return self._letter_job("DiscardDeadLetters", data, context)

    async def _letter_job(self, method: str, data: bytes, context: Context) -> AsyncIterator[bytes]:
        caller = sharer(context.peer())
        with self._letter_jobs.seat(caller):
            async for answer in self._retry.stream(method, data, remaining_ms(context), caller):
                yield answer

    async def create_group(self, request: pb.CreateGroupRequest, context: Context) -> pb.Group:
        return await self._groups.create(request.group, sharer(context.peer()))

    async def update_group(self, request: pb.UpdateGroupRequest, context: Context) -> pb.Group:
        return await self._groups.update(request)

    async def list_groups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        answer, access = await self._groups.list(), permit.current()
        return pb.ListGroupsResponse(
            groups=[one for one in answer.groups if access.may(ANY_RIGHT, Kind.GROUP, one.name)]
        )

    async def describe_group(self, request: pb.DescribeGroupRequest, context: Context) -> pb.GroupDescription:
        return await self._groups.describe(request.name)

    async def reset_group(self, request: pb.ResetGroupRequest, context: Context) -> pb.ResetGroupResponse:
        return await self._groups.reset(request)

    async def limit_group(self, request: pb.LimitGroupRequest, context: Context) -> pb.Group:
        return await self._groups.limit(request)

    async def declare_limits(self, request: pb.DeclareGroupLimitsRequest, context: Context) -> pb.Group:
        return await self._groups.declare(request, sharer(context.peer()))

    async def pause_group(self, request: pb.PauseGroupRequest, context: Context) -> pb.GroupPauses:
        return await self._groups.change_pause(request)

    async def resume_group(self, request: pb.ResumeGroupRequest, context: Context) -> pb.GroupPauses:
        return await self._groups.change_pause(request)

    async def delete_group(self, request: pb.DeleteGroupRequest, context: Context) -> pb.DeleteGroupResponse:
        await self._groups.delete(request)
        return pb.DeleteGroupResponse()
