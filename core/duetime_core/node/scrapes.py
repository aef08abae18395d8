"""The HTTP server of metrics and probes: one thread per connection, limited in number and time.

A connection above the limit is accepted, since it may be a probe that decides about the process; instead, the oldest
one of the host with the most is closed.
"""

import socket
import sys
from collections import Counter
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Lock
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from duetime_core.access.certificates import HttpCertificates
from duetime_core.telemetry.logs import sparing
from duetime_core.telemetry.traces import name_of

# Logger for errors that callers can trigger.
often = sparing()

SCRAPES_MAX = 32
# Longest time without bytes of a request, or without progress of an answer.
SCRAPE_STILL_S = 10.0


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """One thread per request: a scrape must not wait for a probe."""

    # None: plain HTTP.
    certificates: HttpCertificates | None = None
    daemon_threads = True
    # Backlog of new connections; with the base class's 5, a client's next attempt comes a second later.
    request_queue_size = 4 * SCRAPES_MAX

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = Lock()
        # Open connections and their hosts, oldest first.
        self._open: dict[socket.socket, str] = {}
        super().__init__(*arguments, **options)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection; its own thread performs the handshake first, within its time limit."""
        request, address = super().get_request()
        if self.certificates is None:
            return request, address
        context = self.certificates.context()
        return context.wrap_socket(request, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= SCRAPES_MAX:
                self._end_one()
            self._open[request] = client_address[0]
        super().process_request(request, client_address)

    def _end_one(self) -> None:
        """Closes the oldest connection of the host with the most; its thread then ends by itself."""
        (greediest, count), *_ = Counter(self._open.values()).most_common(1)
        oldest = next(one for one, host in self._open.items() if host == greediest)
        del self._open[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        often.warning("metrics connection closed in favour of another", host=greediest, count=count)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a caller that left, or sent invalid HTTP: the base class prints a trace of ten lines for each."""
        error = sys.exception()
        often.warning("cannot answer a metrics request", error=name_of(error) if error is not None else "")


class ScrapeHandler(WSGIRequestHandler):
    """One request; `timeout` is the base class's name for the longest wait for bytes."""

    timeout = SCRAPE_STILL_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name for it
        """Requests are not logged."""
