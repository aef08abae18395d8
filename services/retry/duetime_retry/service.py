"""The Retry's gRPC surface."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from duetime.v1 import consumer_pb2, retry_pb2, retry_pb2_grpc
from duetime_core.errors import InvalidArgument, Violation
from duetime_format.admission import group_violations

from duetime_retry.dead_letters import DeadLetterOperations
from duetime_retry.nacks import Nacks, nack_violations
from duetime_retry.send_back import SendBacks, send_back_violations


class RetryService(retry_pb2_grpc.RetryServicer):
    """See proto/duetime/v1/retry.proto."""

    def __init__(self, send_backs: SendBacks, nacks: Nacks, dead_letters: DeadLetterOperations) -> None:
        self._send_backs = send_backs
        self._nacks = nacks
        self._dead_letters = dead_letters

    async def SendBack(self, request: retry_pb2.SendBackRequest, context: Any) -> retry_pb2.SendBackResponse:
        _refuse([*group_violations("group", request.group), *send_back_violations(request)], "SEND_BACK_INVALID")
        return await self._send_backs.send_back(request)

    async def Nack(self, request: consumer_pb2.NackRequest, context: Any) -> consumer_pb2.NackResponse:
        _refuse([*group_violations("group", request.group), *nack_violations(request)], "NACK_INVALID")
        return consumer_pb2.NackResponse(results=await self._nacks.nack(request))

    async def ListDeadLetters(
        self, request: consumer_pb2.ListDeadLettersRequest, context: Any
    ) -> consumer_pb2.ListDeadLettersResponse:
        return await self._dead_letters.page(request)

    def RedriveDeadLetters(
        self, request: consumer_pb2.RedriveRequest, context: Any
    ) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self._dead_letters.redrive(request)

    def DiscardDeadLetters(
        self, request: consumer_pb2.DiscardRequest, context: Any
    ) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self._dead_letters.discard(request)


def _refuse(violations: Sequence[Violation], reason: str) -> None:
    if violations:
        raise InvalidArgument(violations, reason=reason)
