"""Webhooks with retry, backoff and dead letters, to a receiver that fails in three ways.

python examples/webhooks.py             retries after 5 s, 30 s and 2 minutes
python examples/webhooks.py 1s,2s       a quick run
"""

import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from duetime import Consumer, DeadLetters, LeasedMessage, Producer, Reject, Retry

TOPIC = "webhooks"
GROUP = "webhook-sender"
BACKOFF = sys.argv[1] if len(sys.argv) > 1 else "5s,30s,2m"
ATTEMPTS = 4


class Receiver(BaseHTTPRequestHandler):
    """The customers' servers: /shaky works at the third attempt, /gone returns 410, /down returns 500."""

    seen: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.seen[self.path] += 1
        status = {"/shaky": 200 if self.seen[self.path] > 2 else 503, "/gone": 410, "/down": 500}[self.path]
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing: the sender prints."""


def post(url: str, body: bytes) -> int:
    """The status of the answer; 0: no answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def deliver(message: LeasedMessage) -> None:
    """Raises Reject if a retry can't help, and Retry if it may."""
    url = message.properties["url"]
    status = post(url, message.body)
    print(f"{url.rpartition('/')[2]}: attempt {message.attempt}: {status}", flush=True)
    if 400 <= status < 500 and status not in (408, 429):
        raise Reject(f"the receiver says {status}")
    if status != 200:
        raise Retry(reason=f"the receiver says {status}")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    consumer = Consumer(group=GROUP)

    @consumer.handler(TOPIC, concurrency=8, backoff=BACKOFF, max_attempts=ATTEMPTS)
    def send_one(message: LeasedMessage) -> None:
        try:
            deliver(message)
        finally:
            if message.properties["url"].endswith("/down") and message.attempt == ATTEMPTS:
                consumer.stop()  # the last one of this demonstration

    with Producer() as producer:
        for path in ("shaky", "gone", "down"):
            producer.send(TOPIC, b'{"event": "paid"}', properties={"url": f"{base}/{path}"})
    consumer.run()
    server.shutdown()
    server.server_close()
    with DeadLetters(group=GROUP) as letters:
        for letter in letters.list():
            print(f"dead: {letter.properties['url'].rpartition('/')[2]}: {letter.error}")
        # Once the receiver is repaired: letters.redrive(error="500")


if __name__ == "__main__":
    main()
