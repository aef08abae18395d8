"""A channel to the copies of a shard: one channel for each address, and calls on the one that leads.

    address ──▶ channel, always connecting ──READY──▶ the latest one gets new calls
    address ──▶ channel, refused: its copy does not lead

Each channel checks the certificate for the host of its own address; gRPC's own lists check one name for all.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import grpc
from duetime.channels import ForwardingChannel

READY, FAILED = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
# Calls of one method at each address, for the call that is being made.
_methods: ContextVar[Sequence[Any]] = ContextVar("_methods")


class CopiesChannel(ForwardingChannel):
    """Calls the address that accepted the latest connection: a copy listens only while it leads.

    Without a connection, a call waits for one; it fails with UNAVAILABLE once all addresses have failed, or with
    `wait_for_ready` at its deadline. A call stays on its connection, and fails with it.
    """

    def __init__(self, addresses: Sequence[str], make: Callable[[str], grpc.aio.Channel]) -> None:
        self._channels = [make(address) for address in addresses]
        self._states = [grpc.ChannelConnectivity.IDLE] * len(addresses)
        # Numbers of the connected ones; the latest is the last.
        self._ready: list[int] = []
        self._changed = asyncio.Event()
        # Its interceptors make each call on a channel of an address; it connects to nothing.
        self._waiting = grpc.aio.insecure_channel(addresses[0], interceptors=_interceptors(self._start))
        loop = asyncio.get_running_loop()
        self._watches = [loop.create_task(self._watch(number)) for number in range(len(addresses))]

    async def _watch(self, number: int) -> None:
        channel = self._channels[number]
        while True:
            state = channel.get_state(try_to_connect=True)
            self._note(number, state)
            await channel.wait_for_state_change(state)

    def _note(self, number: int, state: grpc.ChannelConnectivity) -> None:
        self._states[number] = state
        if number in self._ready and state is not READY:
            self._ready.remove(number)
        elif number not in self._ready and state is READY:
            self._ready.append(number)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _start(self, _: Any, details: grpc.aio.ClientCallDetails, request: Any) -> Any:
        """Makes a call once an address is connected, or all have failed."""
        methods, loop = _methods.get(), asyncio.get_running_loop()
        until = None if details.timeout is None else loop.time() + details.timeout
        is_late = False
        try:
            async with asyncio.timeout_at(until):
                await self._settled(patient=bool(details.wait_for_ready))
        except TimeoutError:
            is_late = True
        method = methods[self._ready[-1] if self._ready else 0]
        return method(
            request,
            timeout=None if until is None else max(until - loop.time(), 0.0),
            metadata=details.metadata,
            credentials=details.credentials,
            # The call of a late caller reports the deadline.
            wait_for_ready=is_late,
        )

    async def _settled(self, *, patient: bool) -> None:
        """Returns once an address is connected; if not `patient`, also once all have failed."""
        while not self._ready and (patient or any(state is not FAILED for state in self._states)):
            await self._changed.wait()

    def _method(self, kind: str, arguments: Any, options: Any) -> Any:
        methods = [getattr(channel, kind)(*arguments, **options) for channel in self._channels]
        waiting = getattr(self._waiting, kind)(*arguments, **options)

        def call(*request: Any, **further: Any) -> Any:
            if self._ready:
                # The copy may have lost its lead: nobody waits for this address.
                further.pop("wait_for_ready", None)
                return methods[self._ready[-1]](*request, **further)
            # The interceptor's task has a copy of this context.
            token = _methods.set(methods)
            try:
                return waiting(*request, **further)
            finally:
                _methods.reset(token)

        return call

    async def close(self, grace: float | None = None) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(channel.close(grace) for channel in (self._waiting, *self._channels)))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """READY, or the state of the first address; it is always connecting."""
        return READY if self._ready else self._states[0]

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        while self.get_state() is last_observed_state:
            await self._changed.wait()

    async def channel_ready(self) -> None:
        await self._settled(patient=True)


def _interceptors(start: Callable[..., Any]) -> list[grpc.aio.ClientInterceptor]:
    """One for each kind of call: gRPC takes the first kind that an object has."""
    found: list[grpc.aio.ClientInterceptor] = []
    for kind in KINDS:
        base = getattr(grpc.aio, f"{''.join(part.title() for part in kind.split('_'))}ClientInterceptor")
        made = type("_Starter", (base,), {f"intercept_{kind}": staticmethod(start)})
        found.append(made())
    return found
