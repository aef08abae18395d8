"""Requests to receivers: HTTP/1.1 over connections to checked addresses, which are kept for further requests.

    URL ─▶ addresses of the host ─▶ NetworkRules ─▶ connection to one of them ─▶ TLS for the URL's host ─▶ POST

Redirects are not followed, proxies of the environment are not used, and a response is read to a limit.
"""

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpcore2

from duetime_webhooks.addresses import Address, NetworkRules
from duetime_webhooks.responses import SHOWN_BYTES, ReceiverResponse
from duetime_webhooks.shares import FairShares

# A response up to this size is read to its end, so that the connection can be used again.
RESPONSE_BYTES_MAX = 64 * 1024
IDLE_S = 30.0
# Addresses of a host that are tried, each for at most its part of the request's time.
TRIED_MAX = 3


class DeliveryError(Exception):
    """A request without a response; the text names neither path nor query of the URL, which may have secrets."""


class AddressRefused(DeliveryError):
    """The URL's host has no address to which webhooks may connect."""


class NoResponse(DeliveryError):
    """No connection, or no complete response in time."""


class Poster:
    """Sends the requests of all webhooks."""

    def __init__(
        self, rules: NetworkRules, *, ca_file: Path | None = None, allow_http: bool = False, requests_max: int
    ) -> None:
        """`ca_file`: CAs that are trusted beside the system's. `requests_max`: at once; others wait for their turn.

        Raises:
            OSError: the file can't be read.
        """
        self._context = ssl.create_default_context()
        if ca_file is not None:
            self._context.load_verify_locations(ca_file)
        self._allow_http = allow_http
        self._turns = FairShares(requests_max)
        self._requests_max = self._idle_max = requests_max
        self._backend = _CheckedBackend(rules)
        # Pools of webhooks: a pool looks at each of its connections, with a system call, for each request.
        self._pools: dict[str, httpcore2.AsyncConnectionPool] = {}

    async def divide(self, webhooks: Collection[str]) -> None:
        """Divides turns and idle connections among these webhooks, and ends idle connections of others."""
        self._turns.divide(len(webhooks))
        self._idle_max = max(1, self._requests_max // max(1, len(webhooks)))
        for name in self._pools.keys() - set(webhooks):
            if not self._turns.held(name):
                await self._pools.pop(name).aclose()

    def _pool_of(self, webhook: str) -> httpcore2.AsyncConnectionPool:
        if webhook not in self._pools:
            self._pools[webhook] = httpcore2.AsyncConnectionPool(
                ssl_context=self._context,
                max_connections=self._requests_max,
                max_keepalive_connections=self._idle_max,
                keepalive_expiry=IDLE_S,
                network_backend=self._backend,
            )
        return self._pools[webhook]

    async def post(
        self, webhook: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
    ) -> ReceiverResponse:
        """Sends one request of a webhook, and returns once the response has arrived. Waiting for a turn takes none of
        its time.

        Raises:
            DeliveryError: there is no response.
        """
        if not self._allow_http and not url.startswith("https:"):
            raise AddressRefused("http is not permitted: use https, or set DUETIME_WEBHOOKS_ALLOW_HTTP=1")
        async with self._turns.turn(webhook):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._post(webhook, url, headers, body, timeout_s)
            except TimeoutError:
                raise NoResponse(f"no complete response within {timeout_s:g} s") from None
            except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
                raise NoResponse(_words(error)) from None

    async def _post(
        self, webhook: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
    ) -> ReceiverResponse:
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        # The scheme's name and the host may be in capitals.
        sent = [("host", urlsplit(url).netloc), *headers]
        async with self._pool_of(webhook).stream(
            "POST", url, headers=sent, content=body, extensions={"timeout": timeouts}
        ) as response:
            beginning = bytearray()
            read_bytes = 0
            async for part in response.aiter_stream():
                beginning += part[: SHOWN_BYTES - len(beginning)]
                read_bytes += len(part)
                if read_bytes > RESPONSE_BYTES_MAX:
                    break
            found = (value for name, value in response.headers if name.lower() == b"retry-after")
            retry_after = next(found, b"").decode("latin-1")
            return ReceiverResponse(response.status, retry_after, bytes(beginning))

    async def close(self) -> None:
        """Ends all connections."""
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()))


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to permitted addresses only."""

    def __init__(self, rules: NetworkRules) -> None:
        self._rules = rules
        self._inner = httpcore2.AnyIOBackend()
        self._lookups: dict[tuple[str, int], asyncio.Future[list[Address]]] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = self._permitted(host, await self._resolve(host, port))[:TRIED_MAX]
        part_s = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._inner.connect_tcp(str(address), port, part_s, local_address, socket_options)
        return await self._inner.connect_tcp(str(addresses[-1]), port, part_s, local_address, socket_options)

    async def _resolve(self, host: str, port: int) -> list[Address]:
        """The addresses of a host, without repetitions, in the system's order. Raises: NoResponse."""
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        lookup = self._lookups.get((host, port))
        if lookup is None:
            lookup = self._lookups[host, port] = asyncio.get_running_loop().create_future()
            lookup.add_done_callback(lambda ended: self._looked_up(host, port, ended))
            # A thread for each host: a name server that does not answer holds it until the system stops waiting.
            # The end of the process waits for threads of an executor, and for no daemon.
            threading.Thread(target=_look_up, args=(host, port, lookup), name=f"resolver-{host}", daemon=True).start()
        try:
            # The end of one request's time does not end the lookup for the others.
            return await asyncio.shield(lookup)
        except (OSError, UnicodeError) as error:
            raise NoResponse(f"unknown host {host}: {_words(error)}") from None

    def _looked_up(self, host: str, port: int, lookup: "asyncio.Future[list[Address]]") -> None:
        del self._lookups[host, port]
        if not lookup.cancelled():
            # Perhaps nobody waits for its error any more.
            lookup.exception()

    def _permitted(self, host: str, addresses: Sequence[Address]) -> list[Address]:
        """Raises: AddressRefused."""
        reasons = {address: self._rules.refusal(address) for address in addresses}
        permitted = [address for address, why in reasons.items() if not why]
        if not permitted:
            found = ", ".join(f"{address} ({why})" for address, why in list(reasons.items())[:TRIED_MAX])
            raise AddressRefused(f"{host} is not a permitted address: {found}; see DUETIME_WEBHOOKS_PERMITTED_NETWORKS")
        return permitted


def _look_up(host: str, port: int, lookup: "asyncio.Future[list[Address]]") -> None:
    """Resolves the future with the addresses of a host, or its error."""
    try:
        settle = partial(lookup.set_result, _addresses_of(host, port))
    except (OSError, UnicodeError, ValueError) as error:
        settle = partial(lookup.set_exception, error)
    # The event loop has ended if the process ends.
    with suppress(RuntimeError):
        lookup.get_loop().call_soon_threadsafe(settle)


def _addresses_of(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(one[4][0]) for one in found))


def _words(error: BaseException) -> str:
    """The text of an error of the network, or that of its cause."""
    cause = error.__context__ if not str(error) and error.__context__ is not None else error
    text = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
    return str(text)[:200]
