"""Debounce by key: a document is indexed once after many edits, when its writer pauses.

python examples/debounce.py             indexed 30 s after the last edit, 5 minutes after the first at most
python examples/debounce.py 2s          a quick run
"""

import json
import sys

from duetime import Consumer, LeasedMessage, Producer

TOPIC = "documents-to-index"
PAUSE = sys.argv[1] if len(sys.argv) > 1 else "30s"
MAX_WAIT = "5m"


def edit(producer: Producer, document: str, revision: int) -> None:
    """The message replaces the pending one with the same key, and has its own body."""
    body = json.dumps({"document": document, "revision": revision}).encode()
    receipt = producer.send(TOPIC, body, key=document, delay=PAUSE, replace=True, max_wait=MAX_WAIT)
    verb = "put off" if receipt.replaced_id else "planned"
    print(f"{document}, revision {revision}: index {verb}", flush=True)


def main() -> None:
    waiting = {"report", "letter"}
    with Producer() as producer:
        for revision in (1, 2, 3):
            edit(producer, "report", revision)
        edit(producer, "letter", 1)
        edit(producer, "report", 4)
    consumer = Consumer(group="indexer")

    @consumer.handler(TOPIC)
    def index(message: LeasedMessage) -> None:
        work = json.loads(message.body)
        print(f"indexing {work['document']}, revision {work['revision']}", flush=True)
        waiting.discard(work["document"])
        if not waiting:
            consumer.stop()

    consumer.run()


if __name__ == "__main__":
    main()
