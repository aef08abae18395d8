"""The only path to the cluster: one channel to the gateway, calls in a user's name, one kind of error."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

import grpc
from duetime.client.connection import CHANNEL_OPTIONS, resolve_server
from duetime.client.errors import DueTimeError, Violation, from_status
from duetime.client.proxies import direct_options
from duetime.client.tokens import Metadata, Token, credentials_for
from duetime.client.trust import Tls, followed_for
from duetime.tls import FollowingChannel
from duetime.v1 import gateway_pb2_grpc, message_pb2

from duetime_console.settings import Settings

CALL_TIMEOUT_S = 10.0
# Timeout of DeleteTopic: a topic may have much content.
DELETE_TIMEOUT_S = 120.0

# Calls that change nothing; a read-only console rejects all others.
READING = frozenset(
    "Backlog CountSchedules DescribeGroup DescribeTopic GetBacklogReport GetMessage GetOffsets GetReports GetRoute "
    "GetSchedule "
    "GetTransaction ListAuditEvents ListDeadLetters ListFiles ListGroups ListLanes ListLiteTopics ListPending "
    "ListQuotas ListRetries ListSchedules ListShards ListTopics ListTransactions ListWebhooks Pull PullQueues "
    "QueryMessages SearchOffset TraceMessage WhoAmI".split()
)
# HTTP's status by gRPC's code, as in google.rpc.Code.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 409,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 503,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_NAME_BY_CODE = {code.value[0]: code.name for code in grpc.StatusCode}


class GatewayError(Exception):
    """A failed call: gRPC's code by name, a text for people, and the gateway's details."""

    def __init__(
        self,
        code: str,
        text: str,
        *,
        reason: str = "",
        violations: tuple[Violation, ...] = (),
        retry_after_s: float = 0.0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.metadata = dict(metadata or {})
        self.code = code
        self.text = text
        # A stable code for programs: docs/protocol.md.
        self.reason = reason
        self.violations = violations
        self.retry_after_s = retry_after_s

    @classmethod
    def of_fault(cls, fault: message_pb2.Fault) -> Self:
        """The error of one element of a call about several."""
        return cls(
            _NAME_BY_CODE.get(fault.code, "UNKNOWN"),
            fault.message,
            reason=fault.reason,
            violations=tuple(Violation(each.field, each.description) for each in fault.violations),
            retry_after_s=fault.retry_after_ms / 1000,
            metadata=fault.metadata,
        )

    @property
    def status(self) -> int:
        """HTTP's."""
        return STATUSES.get(self.code, 500)


class Gateway:
    """Made and closed on the event loop of its calls."""

    def __init__(self, settings: Settings) -> None:
        """Raises: InvalidArgument: the address is invalid, or the files can't be used."""
        self.server = resolve_server(settings.server)
        self._in_plain = settings.token_in_plain
        self._read_only = settings.read_only
        followed = followed_for(Tls(settings.server_ca_file)) if settings.server_ca_file else None
        self._encrypted = followed is not None
        options = (*CHANNEL_OPTIONS, *direct_options(self.server))
        self._channel: grpc.aio.Channel = (
            grpc.aio.insecure_channel(self.server, options=options)
            if followed is None
            else FollowingChannel(followed, self.server, options)
        )
        self._stub = gateway_pb2_grpc.GatewayStub(self._channel)  # type: ignore[no-untyped-call]

    async def call(self, method: str, request: Any, token: str = "", timeout: float = CALL_TIMEOUT_S) -> Any:
        """One unary call by its method's name, in the name of the token's user; empty: without a user.

        Raises:
            GatewayError: the call failed, or was not made.
        """
        metadata = self._checked(method, token)
        try:
            return await getattr(self._stub, method)(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    async def stream(
        self, method: str, request: Any, token: str = "", timeout: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yields the answers of a streaming call; it ends with the iteration. Raises: GatewayError."""
        call = getattr(self._stub, method)(request, timeout=timeout, metadata=self._checked(method, token))
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        finally:
            call.cancel()

    async def last(self, method: str, request: Any, token: str, timeout: float) -> Any:
        """The last progress of a streaming call that works until it is `done`, or until `timeout` (s) has passed; None:
        there was none. Raises: GatewayError."""
        last = None
        try:
            async with aclosing(self.stream(method, request, token, timeout)) as progress:
                async for last in progress:
                    if last.done:
                        break
        except GatewayError as error:
            if error.code != "DEADLINE_EXCEEDED":
                raise
        return last

    def _checked(self, method: str, token: str) -> Metadata:
        """The metadata of the call. Raises: GatewayError."""
        if self._read_only and method not in READING:
            text = "the console is read-only: it was started with --read-only"
            raise GatewayError("PERMISSION_DENIED", text, reason="READ_ONLY")
        if not token:
            return ()
        try:
            shown = Token(token, in_plain=self._in_plain)
            return credentials_for(self.server, shown, encrypted=self._encrypted).metadata()
        except DueTimeError as error:
            raise GatewayError("INVALID_ARGUMENT", error.text, reason=error.reason) from None

    def _translated(self, error: grpc.aio.AioRpcError) -> GatewayError:
        translated = from_status(error, self.server)
        return GatewayError(
            error.code().name,
            translated.text,
            reason=translated.reason,
            violations=translated.violations,
            retry_after_s=translated.retry_after_s,
            metadata=translated.metadata,
        )

    async def close(self) -> None:
        await self._channel.close()
