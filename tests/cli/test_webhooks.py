"""`duetime webhooks` beside `duetime up --webhooks`: from the command to a receiver."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from duetime import Producer
from standardwebhooks.webhooks import Webhook

from tests.cli.cluster import Up, deadline, run_duetime

SETTINGS = {"DUETIME_WEBHOOKS_PERMITTED_NETWORKS": "127.0.0.0/8", "DUETIME_WEBHOOKS_ALLOW_HTTP": "1"}


class Hooks(ThreadingHTTPServer):
    """Records the requests, and answers 200; 500 below /broken."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.arrived = threading.Condition()

    def until(self, count: int) -> list[tuple[dict[str, str], bytes]]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, 60)
            return self.requests


class Hook(BaseHTTPRequestHandler):
    """One connection."""

    server: Hooks

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.arrived:
            self.server.requests.append((dict(self.headers.items()), body))
            self.server.arrived.notify_all()
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with Hooks() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def done(up: Up, *arguments: str, code: int = 0) -> str:
    found = run_duetime("webhooks", *arguments, "--server", up.server)
    assert found.returncode == code, found.stderr.decode()
    return found.stdout.decode() if code == 0 else found.stderr.decode()


def test_webhook_delivers_from_the_command_to_the_receiver(tmp_path: Path, hooks: Hooks) -> None:
    url = f"http://127.0.0.1:{hooks.server_port}"
    own = ("--topic", "orders", "--group", "hook")
    with Up(tmp_path, "--webhooks", environment=SETTINGS) as up, Producer(up.server) as producer:
        assert (tmp_path / "secrets.key").stat().st_mode & 0o077 == 0
        assert "topic orders does not exist" in done(up, "create", "paid", *own, "--url", f"{url}/hook", code=1)
        producer.send("orders", {"order": 42}, delay="1s")
        secret = done(up, "create", "paid", *own, "--url", f"{url}/hook", "--timeout", "5s").strip()
        ((headers, body),) = hooks.until(1)
        assert Webhook(secret).verify(body, headers) == {"order": 42}
        assert done(up, "test", "paid").startswith("delivered: 200 in ")
        shown = json.loads(done(up, "show", "paid", "--json"))
        assert (shown["has_worker"], shown["paused"], shown["timeout_ms"]) == (True, False, 5_000)
        assert "secret" not in shown
        assert "state        paused" in done(up, "pause", "paid")
        assert "state        active" in done(up, "resume", "paid")
        done(up, "update", "paid", "--url", f"{url}/broken")
        give_up_at = deadline()
        while "failed: 500 Internal Server Error" not in (found := failed_test(up)):
            assert time.monotonic() < give_up_at, found
        both = done(up, "rotate", "paid", "--old-ends", "1d").strip()
        assert both.startswith("whsec_")
        assert "paid" in done(up, "list")
        assert done(up, "delete", "paid", "--yes") == "webhook paid is deleted\n"
        assert done(up, "list") == "no webhooks yet; `duetime webhooks create` creates one\n"
        assert up.end() == (0, "")
    # The key stays with the data.
    with Up(tmp_path) as up:
        done(up, "create", "paid", *own, "--url", url)
        assert "no worker" in done(up, "list")
        assert "no worker runs" in done(up, "test", "paid", "--wait", "0s", code=1)


def failed_test(up: Up) -> str:
    """The output of a test: the worker may not have read the new URL yet."""
    return run_duetime("webhooks", "test", "paid", "--server", up.server).stdout.decode()


def test_wrong_arguments_are_rejected(cluster: Up) -> None:
    for arguments, text in (
        (("update", "paid"), "give at least one of --url"),
        (("delete", "paid"), "give --yes"),
        (("test", "paid", "--wait", "soon"), "--wait 'soon' is not a length"),
    ):
        assert text in " ".join(done(cluster, *arguments, code=2).split())
    assert "there is no webhook paid" in done(cluster, "show", "paid", code=1)
    made = done(cluster, "create", "p", "--topic", "t", "--group", "g", "--url", "ftp://x", code=1)
    assert "begins with 'ftp', not https://" in made
