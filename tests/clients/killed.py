"""A client's work while gateways and stores are killed: `python -m tests.clients.killed HOST:PORT ROLE COUNT SEED`.

Uses RocketMQ's official Python client. Each event is a line of JSON on standard output, as `ledger.py` has them.
`produce` sends COUNT messages, prints `done`, and then answers checks; `simple` and `push` consume as the group of that
name.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

from tests.clients.ledger import DECIDED, TOPIC, Acked, Got, Kind, Sent

ADDRESS, ROLE, MESSAGES, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
THREADS = 8
# After an error.
PAUSE_S = 0.2
LEASE_S = 15
DELAY_S_MAX = 10
# Share of messages that an application takes and never acknowledges.
FORGETFUL = 0.02
# The client does not open its stream again after a gateway's death, and hears of no check until its next settings, five
# minutes later. An application that can't wait for that starts another producer.
PRODUCER_LIFE_S = 15.0

_out = threading.Lock()


def say(*what: Any) -> None:
    with _out:
        print(json.dumps(what), flush=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def started(make: Callable[[], Any]) -> Any:
    """A client, once its gateway lets it start."""
    while True:
        try:
            client = make()
            client.startup()
        except Exception as error:
            print(error, file=sys.stderr)
            time.sleep(0.5)
        else:
            return client


def configuration() -> ClientConfiguration:
    return ClientConfiguration(ADDRESS, Credentials(), request_timeout=3)


# --- producers ------------------------------------------------------------------------------------------------------


class Decisions:
    """The application's database of transactions: all producers of a topic have to answer for each other's. It is one
    file for each transaction; transactions still being sent have none.
    """

    def __init__(self) -> None:
        self._root = Path(os.environ["CLIENTS_DECISIONS"])

    def take(self, body: str, *, commits: bool) -> None:
        (self._root / body).write_text("commit" if commits else "rollback")

    def of(self, body: str) -> Any:
        path = self._root / body
        found = {"commit": TransactionResolution.COMMIT, "rollback": TransactionResolution.ROLLBACK}
        unknown = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return found.get(path.read_text(), unknown) if path.exists() else unknown


class Checker(TransactionChecker):
    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def check(self, message: Message) -> Any:
        return self._decisions.of(message.body.decode())


class Sender:
    """Sends, by a producer that is replaced now and then."""

    def __init__(self) -> None:
        self._dice = random.Random(SEED)
        self._decisions = Decisions()
        self._checker = Checker(self._decisions)
        self._producer = self._start()
        self._since_s = time.monotonic()
        self._old: list[Any] = []
        self._changes = threading.Lock()

    def _start(self) -> Any:
        return started(lambda: Producer(configuration(), (TOPIC,), self._checker))

    def renew(self) -> None:
        """Another producer, if this one is old. Calls that run on the one before come to their ends."""
        with self._changes:
            if time.monotonic() - self._since_s < PRODUCER_LIFE_S:
                return
            self._old.append(self._producer)
            self._producer = self._start()
            self._since_s = time.monotonic()
            while len(self._old) > 1:
                shut_down(self._old.pop(0))

    def send(self, number: int) -> None:
        """One message, again and again until it is sent; each try is another one, since each has an id of its own."""
        with self._changes:
            kind = self._dice.choices(list(Kind), [40, 50, 6, 2, 2])[0]
            delay_s = self._dice.randint(1, DELAY_S_MAX)
        for attempt in count():
            if self._try(f"{SEED}-{number}.{attempt}", kind, delay_s):
                return
            time.sleep(PAUSE_S)

    def _try(self, body: str, kind: Kind, delay_s: int) -> bool:
        message = Message()
        message.topic = TOPIC
        message.body = body.encode()
        due_ms = 0
        if kind == Kind.DELAYED:
            due_s = int(time.time()) + delay_s
            message.delivery_timestamp, due_ms = due_s, due_s * 1000
        self.renew()
        producer = self._producer
        transaction = producer.begin_transaction() if kind in DECIDED else None
        try:
            producer.send(message, transaction) if transaction else producer.send(message)
        except Exception:
            if transaction is not None:
                # It was not begun, even if the store has a part of it.
                self._decisions.take(body, commits=False)
            say(*Sent(body, due_ms, kind, ok=False))
            return False
        if transaction is not None:
            self._end(body, kind, transaction)
        say(*Sent(body, due_ms, kind, ok=True))
        return True

    def _end(self, body: str, kind: Kind, transaction: Any) -> None:
        rolls_back = kind == Kind.ROLLED_BACK
        self._decisions.take(body, commits=not rolls_back)
        try:
            if rolls_back:
                transaction.rollback()
            elif kind == Kind.COMMITTED:
                transaction.commit()
        except Exception:
            # A check will ask.
            return


def shut_down(client: Any) -> None:
    try:
        client.shutdown()
    except Exception as error:
        print(error, file=sys.stderr)


def produce() -> None:
    sender = Sender()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(sender.send, range(MESSAGES)))
    say("done")
    while True:
        time.sleep(PAUSE_S)
        sender.renew()


# --- consumers ------------------------------------------------------------------------------------------------------


def simple() -> None:
    dice = random.Random(SEED)
    subscription = {TOPIC: FilterExpression()}
    consumer = started(lambda: SimpleConsumer(configuration(), "simple", subscription, await_duration=5))

    def settle(message: Message) -> None:
        body = message.body.decode()
        if message.delivery_attempt == 1 and dice.random() < FORGETFUL:
            return
        try:
            consumer.ack(message)
        except Exception:
            # It may have been taken all the same.
            return
        say(*Acked("simple", body, now_ms()))

    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            try:
                messages = consumer.receive(32, LEASE_S)
            except Exception:
                time.sleep(PAUSE_S)
                continue
            # All at this moment: by the time that one is settled, its lease may be over.
            at_ms = now_ms()
            for message in messages:
                say(*Got("simple", message.body.decode(), message.delivery_attempt, at_ms))
            list(pool.map(settle, messages))


class Listener(MessageListener):
    def consume(self, message: Message) -> Any:
        say(*Got("push", message.body.decode(), message.delivery_attempt, now_ms()))
        return ConsumeResult.SUCCESS


def push() -> None:
    started(lambda: PushConsumer(configuration(), "push", Listener(), {TOPIC: FilterExpression()}))
    threading.Event().wait()


def main() -> None:
    {"produce": produce, "simple": simple, "push": push}[ROLE]()


if __name__ == "__main__":
    main()
