"""A receiver of webhooks in a container beside a project: it counts requests by the message's id."""

import json
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.compose.stack import Stack

# Its name for the worker: the engine's name server resolves it.
HOST = "receiver"
PORT = 8080
# The networks that an engine takes its own from. A deployment has no need for such a setting: receivers are public.
SETTINGS = {
    "COMPOSE_PROFILES": "webhooks",
    "DUETIME_SECRETS_KEY": "A" * 43 + "=",
    "DUETIME_WEBHOOKS_PERMITTED_NETWORKS": "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16",
    "DUETIME_WEBHOOKS_ALLOW_HTTP": "true",
}
# Answers POST with 204, and GET with the number of requests by message.
CODE = """
import collections, http.server, json, sys
counts = collections.Counter()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["webhook-signature"].startswith("v1,")
        counts[self.headers["webhook-id"]] += 1
        self.send_response(204)
        self.end_headers()
    def do_GET(self):
        body = json.dumps(counts).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass(frozen=True)
class HookReceiver:
    """The receiver, as this host reaches it."""

    port: int
    url: str = f"http://{HOST}:{PORT}/hook"

    def counts(self) -> Counter[str]:
        """Requests by message."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=30) as answer:
            return Counter(json.loads(answer.read()))

    def until(self, ids: set[str], within_s: float) -> Counter[str]:
        """The requests by message, once each of these messages has arrived."""
        end = time.monotonic() + within_s
        while missing := ids - (found := self.counts()).keys():
            assert time.monotonic() < end, f"{len(missing)} of {len(ids)} have not arrived: {sorted(missing)[:5]}"
            time.sleep(0.2)
        return found


@contextmanager
def receiving(stack: Stack) -> Iterator[HookReceiver]:
    """A receiver in the network that a worker calls out to. It is no part of the project: nothing there ends it."""
    name = f"{stack.name}-{HOST}"
    command = ["docker", "run", "--detach", "--rm", "--name", name, "--network", f"{stack.name}_outside"]
    command += ["--network-alias", HOST, "--publish", f"127.0.0.1::{PORT}", "--entrypoint", "python"]
    _docker(*command, "duetime/webhooks:test", "-u", "-P", "-c", CODE, str(PORT))
    try:
        published = _docker("docker", "port", name, str(PORT)).splitlines()[0]
        yield HookReceiver(int(published.rpartition(":")[2]))
    finally:
        _docker("docker", "rm", "--force", name)


def _docker(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
