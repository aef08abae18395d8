"""All gRPC services of the gateway's port."""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from duetime_gateway.face.gate import QuotaGate
from duetime_gateway.face.guards import Refused, guarded
from duetime_gateway.face.quota_service import QuotaService
from duetime_gateway.face.scaler import SERVICE_NAME as SCALER_NAME
from duetime_gateway.face.scaler import Scaler

SERVICE_NAME = "duetime.v1.Gateway"
SERVICE_NAMES = (SERVICE_NAME, SCALER_NAME)


class CallService(Protocol):
    """A part of `duetime.v1.Gateway`."""

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        ...


class StreamService(CallService, Protocol):
    """A part with streams that take requests."""

    def end_streams(self) -> None:
        """Ends streams once their requests in progress are answered."""
        ...


class Face:
    """`duetime.v1.Gateway`, in its parts, and KEDA's scaler."""

    def __init__(
        self,
        services: Sequence[CallService],
        streaming: Sequence[StreamService],
        quotas: QuotaService,
        gate: QuotaGate,
        scaler: Scaler,
    ) -> None:
        self._services = (*services, *streaming)
        self._streaming = streaming
        self._quotas = quotas
        self._gate = gate
        self._scaler = scaler

    def add_to(self, server: grpc.aio.Server, refused: Refused | None) -> None:
        """Registers all calls. `refused`: gets the errors of callers without the right, as checked for each request;
        None: users are off."""
        limited = {name: handler for service in self._services for name, handler in service.handlers().items()}
        # Quotas can be changed even by a user without any left.
        handlers = {**self._gate.around(limited), **self._quotas.handlers()}
        if refused is not None:
            handlers = guarded(SERVICE_NAME, handlers, refused)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        self._scaler.add_to(server)

    def end_streams(self) -> None:
        """Ends streams once their requests in progress are answered."""
        for service in self._streaming:
            service.end_streams()
        self._scaler.end()
