"""Adds the store's calls to its server. With copies, no answer about the present leaves a leader that was deposed."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import iscoroutinefunction
from typing import Any

import grpc
from duetime.v1 import export_pb2, gateway_pb2, store_pb2_grpc, subscriptions_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.serving import code_of

from duetime_store.service import SERVICE_NAME, StoreService
from duetime_store.writing.committing import Leadership

_OUT_OF_RANGE = gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE
_NOT_FOUND = code_of(grpc.StatusCode.NOT_FOUND)

# A field of QueueNews on the wire; messages may contain the same bytes.
_NEWS_OUT_OF_RANGE = b"\x30\x01"


def _has_news_out_of_range(answer: bytes) -> bool:
    if _NEWS_OUT_OF_RANGE not in answer:
        return False
    return any(queue.out_of_range for queue in subscriptions_pb2.SubscribeResponse.FromString(answer).queues)


# Calls whose answers need no proof, unless the function returns True. Calls by offset return committed messages, which
# never change, or an end of the queue. The others lend or announce something, and the next call shows the truth.
UNPROVEN: dict[str, Callable[[Any], bool]] = {
    "Pull": lambda answer: answer.status == _OUT_OF_RANGE,
    "PullQueues": lambda answer: any(one.pull.status == _OUT_OF_RANGE for one in answer.queues),
    "GetRecord": lambda _: False,
    "PullDue": lambda _: False,
    "AwaitMessages": lambda _: False,
    "StandIn": lambda _: False,
    "ShareRates": lambda _: False,
    # Answers of streams are commits, messages or leases, except for these.
    "Subscribe": _has_news_out_of_range,
    "PutStream": lambda answer: answer.fault.code == _NOT_FOUND or bool(answer.faults),
}


def add_calls(service: StoreService, server: grpc.aio.Server, leadership: Leadership | None) -> None:
    """Registers all calls. Some come first and by hand: their answers are already encoded, which generated code does
    not expect. `leadership`: see Committer."""
    calls: Any = service if leadership is None else ConfirmedCalls(service, leadership)
    encoded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Export": grpc.unary_stream_rpc_method_handler(calls.Export, export_pb2.ExportRequest.FromString),
        "Subscribe": grpc.stream_stream_rpc_method_handler(
            calls.Subscribe, subscriptions_pb2.SubscribeRequest.FromString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, encoded),))
    store_pb2_grpc.add_StoreServicer_to_server(calls, server)  # type: ignore[no-untyped-call]


class ConfirmedCalls:
    """The calls of a service, with the leader's proof before their answers and errors.

    The state is read first, then proven. A call that has waited for the commit of its own entry needs no round of
    heartbeats, and many others neither: any entry since its arrival is a proof.
    """

    def __init__(self, service: StoreService, leadership: Leadership) -> None:
        self._service, self._leadership = service, leadership

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._service, name)
        confirm = self._single if iscoroutinefunction(call) else self._streamed
        return confirm(call, UNPROVEN.get(name))

    def _single(self, call: Callable[..., Awaitable[Any]], is_present: Callable[[Any], bool] | None) -> Any:
        leadership = self._leadership

        async def confirmed(request: Any, context: Any) -> Any:
            moment = leadership.moment()
            try:
                answer = await call(request, context)
            except DueTimeError as error:
                if not error.retriable:
                    await leadership.confirm(moment)
                raise
            if is_present is None or is_present(answer):
                await leadership.confirm(moment)
            return answer

        return confirmed

    def _streamed(self, call: Callable[..., AsyncIterator[Any]], is_present: Callable[[Any], bool] | None) -> Any:
        leadership = self._leadership

        async def confirmed(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(call(request, context)) as answers:  # type: ignore[type-var]
                    async for answer in answers:
                        if is_present is not None and is_present(answer):
                            await leadership.confirm(leadership.moment())
                        yield answer
            except DueTimeError as error:
                if not error.retriable:
                    await leadership.confirm(leadership.moment())
                raise

        return confirmed
