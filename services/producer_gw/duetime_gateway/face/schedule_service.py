"""The Gateway's gRPC surface for schedules."""

from typing import Any

import grpc
from duetime.v1 import schedules_pb2 as pb
from duetime.v1 import store_pb2
from duetime_core.limits.room import Room
from duetime_format.limits import PULL_BYTES_MAX

from duetime_gateway.face.answering import room_in_turn
from duetime_gateway.face.callers import Context, caller, remaining_ms
from duetime_gateway.packing.sends import draft_of
from duetime_gateway.pending.counting import PendingCounter
from duetime_gateway.pending.schedules import ScheduleChanges, ScheduleRouter

Change = store_pb2.ScheduleChange


class ScheduleService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, schedules: ScheduleRouter, counting: PendingCounter, answers: Room) -> None:
        self._schedules = schedules
        self._counting = counting
        self._answers = answers

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary, shown = grpc.unary_unary_rpc_method_handler, pb.Schedule.SerializeToString
        return {
            "PutSchedule": unary(self.put, pb.PutScheduleRequest.FromString, pb.PutScheduleResponse.SerializeToString),
            "PutSchedules": unary(
                self.put_all, pb.PutSchedulesRequest.FromString, pb.PutSchedulesResponse.SerializeToString
            ),
            "GetSchedule": unary(self.get, pb.GetScheduleRequest.FromString, shown),
            "ListSchedules": unary(
                self.list, pb.ListSchedulesRequest.FromString, pb.ListSchedulesResponse.SerializeToString
            ),
            "CountSchedules": unary(
                self.count, pb.CountSchedulesRequest.FromString, pb.CountSchedulesResponse.SerializeToString
            ),
            "PauseSchedule": unary(self.pause, pb.ScheduleRef.FromString, shown),
            "ResumeSchedule": unary(self.resume, pb.ScheduleRef.FromString, shown),
            "DeleteSchedule": unary(
                self.delete, pb.ScheduleRef.FromString, pb.DeleteScheduleResponse.SerializeToString
            ),
            "RunSchedule": unary(self.run, pb.RunScheduleRequest.FromString, pb.RunScheduleResponse.SerializeToString),
        }

    async def put(self, request: pb.PutScheduleRequest, context: Context) -> pb.PutScheduleResponse:
        return await self._schedules.put(draft_of(request.schedule.message), request, caller(context))

    async def put_all(self, request: pb.PutSchedulesRequest, context: Context) -> pb.PutSchedulesResponse:
        drafts = [draft_of(one.schedule.message) for one in request.puts]
        with await room_in_turn(self._answers, context.peer(), request.ByteSize(), remaining_ms(context)):
            return await self._schedules.put_all(drafts, request, caller(context))

    async def get(self, request: pb.GetScheduleRequest, context: Context) -> pb.Schedule:
        asked = ScheduleChanges(request.topic, request.name, next_count=request.next_count)
        return (await self._schedules.change(asked, remaining_ms(context))).schedule

    async def list(self, request: pb.ListSchedulesRequest, context: Context) -> pb.ListSchedulesResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            return await self._schedules.page(request, remaining_ms(context))

    async def count(self, request: pb.CountSchedulesRequest, context: Context) -> pb.CountSchedulesResponse:
        return await self._counting.schedules(request, remaining_ms(context))

    async def pause(self, request: pb.ScheduleRef, context: Context) -> pb.Schedule:
        asked = ScheduleChanges(request.topic, request.name, Change.SCHEDULE_CHANGE_PAUSE)
        return (await self._schedules.change(asked, remaining_ms(context))).schedule

    async def resume(self, request: pb.ScheduleRef, context: Context) -> pb.Schedule:
        asked = ScheduleChanges(request.topic, request.name, Change.SCHEDULE_CHANGE_RESUME)
        return (await self._schedules.change(asked, remaining_ms(context))).schedule

    async def delete(self, request: pb.ScheduleRef, context: Context) -> pb.DeleteScheduleResponse:
        asked = ScheduleChanges(request.topic, request.name, Change.SCHEDULE_CHANGE_DELETE)
        await self._schedules.change(asked, remaining_ms(context))
        return pb.DeleteScheduleResponse()

    async def run(self, request: pb.RunScheduleRequest, context: Context) -> pb.RunScheduleResponse:
        asked = ScheduleChanges(request.topic, request.name, Change.SCHEDULE_CHANGE_RUN, request.request_id)
        answer = await self._schedules.change(asked, remaining_ms(context))
        return pb.RunScheduleResponse(message_id=answer.message_id, stored_bytes=len(answer.schedule.message.body))
