"""The HTTP page: a client that sends or reads nothing blocks no other."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from duetime_core.node import scrapes
from duetime_core.node.life import serve_metrics
from duetime_core.node.scrapes import SCRAPES_MAX, ScrapeHandler
from prometheus_client import CollectorRegistry

DEADLINE_S = 60.0


@pytest.fixture
def port() -> Iterator[int]:
    served, stop = serve_metrics(CollectorRegistry(), "127.0.0.1", 0)
    yield served
    stop()


def scraped(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        return int(answer.status)


def silent(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S, source_address=(source, 0))


def test_probe_is_answered_beside_silent_connections(port: int) -> None:
    with ExitStack() as ends:
        others = [ends.enter_context(silent(port, "127.0.0.3")) for _ in range(2)]
        flood = [ends.enter_context(silent(port, "127.0.0.2")) for _ in range(3 * SCRAPES_MAX)]
        assert scraped(port) == 200
        # The oldest of the flood were ended, and none of the host that has few.
        assert flood[0].recv(1) == b""
        for one in others:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.0 200")


def test_a_silent_caller_is_disconnected(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    assert ScrapeHandler.timeout == scrapes.SCRAPE_STILL_S
    monkeypatch.setattr(ScrapeHandler, "timeout", 0.05)
    with silent(port, "127.0.0.1") as one:
        one.sendall(b"GET /metr")
        assert one.recv(1) == b""
    assert scraped(port) == 200
