"""The demonstration: a few delayed messages, each shown on arrival."""

import asyncio
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from duetime_format.printing import echo
from rich.console import Console

from duetime import deadlines
from duetime.cli.gateway import reach
from duetime.cli.messages import message_object
from duetime.cli.options import Json, Server
from duetime.cli.output import local, on_one_line, print_json
from duetime.cli.send import receipt_object
from duetime.client.connection import SERVER_DEFAULT, GatewayConnection
from duetime.client.consuming.puller import AsyncPuller
from duetime.client.errors import AlreadyExists, DueTimeError
from duetime.client.message import Message, Receipt
from duetime.client.record import ReceivedMessage
from duetime.client.sending.producer import AsyncProducer
from duetime.client.trust import Tls
from duetime.v1 import gateway_pb2

TOPIC = "demo"
QUEUE_COUNT = 4
MESSAGES = (
    ("1s", "the tea is poured"),
    ("1s", "the lights are on"),
    ("5s", "the basket is given up"),
    ("5s", "the order is cancelled"),
    ("10s", "the reminder is sent"),
    ("10s", "the trial is over"),
)
# Later messages are not shown.
TIMEOUT_S = 60.0


class Demo:
    """One run against a cluster. Messages stored before it, by an earlier run, are not shown."""

    def __init__(self, server: str, *, as_json: bool, ours: bool = True, tls: Tls | None = None) -> None:
        """`ours`: this command runs the cluster and stops it at its end."""
        self._server = server
        self._tls = tls
        self._as_json = as_json
        self._ours = ours
        self._console = Console(highlight=False)
        self._began_at = datetime.now(UTC)
        self._missing: set[str] = set()

    async def run(self) -> bool:
        """Returns whether all messages arrived. An error is printed, and does not end the cluster."""
        whole = False
        try:
            async with deadlines.within(TIMEOUT_S):
                await self._send_and_show()
            whole = True
        except DueTimeError as error:
            echo(f"duetime: the demonstration ended early: {error}", err=True)
        except TimeoutError:
            text = f"{len(self._missing)} messages did not arrive within {TIMEOUT_S:g} s"
            echo(f"duetime: the demonstration ended early: {text}", err=True)
        if not self._as_json:
            self._say(_next_steps(self._server, self._ours))
        return whole

    async def _send_and_show(self) -> None:
        await self._make_topic()
        async with (
            AsyncProducer(self._server, tls=self._tls) as producer,
            AsyncPuller(self._server, TOPIC, tls=self._tls) as puller,
        ):
            self._say(f"\nSending {len(MESSAGES)} messages to topic {TOPIC}:")
            messages = [Message(TOPIC, body.encode(), delay=delay) for delay, body in MESSAGES]
            for message, outcome in zip(messages, await producer.send_many(messages), strict=True):
                self._sent(message, outcome)
            self._say("\nArriving:")
            with self._waiting():
                while self._missing:
                    for received in await puller.poll(wait=timedelta(seconds=TIMEOUT_S)):
                        self._arrived(received)

    async def _make_topic(self) -> None:
        connection = GatewayConnection(self._server, tls=self._tls)
        try:
            request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
            await connection.call("CreateTopic", request, TIMEOUT_S)
        except AlreadyExists:
            pass  # it exists with another number of queues, which does not matter
        finally:
            await connection.close()

    def _sent(self, message: Message, receipt: Receipt) -> None:
        self._missing.add(receipt.message_id)
        self._report(
            {"demo": "sent"} | receipt_object(receipt),
            f"  in {message.delay!s:>3}  {local(receipt.deliver_at)}  {message.body.decode()}",
        )

    def _arrived(self, message: ReceivedMessage) -> None:
        own = message.id in self._missing
        self._missing.discard(message.id)
        if not own and message.stored_at < self._began_at:
            return  # shown by an earlier run
        late = "" if message.late_ms is None else f"[bold]{message.late_ms:,} ms[/bold] late"
        earlier = "" if own else "  (from an earlier run)"
        body = on_one_line(message.body).replace("[", r"\[")
        self._report(
            {"demo": "arrived"} | message_object(message),
            f"  [green]{local(message.stored_at)}[/green]  {late:<28}{body}{earlier}",
        )

    def _report(self, value: dict[str, Any], line: str) -> None:
        if self._as_json:
            print_json(value)
            sys.stdout.flush()
        else:
            self._say(line)

    def _say(self, text: str) -> None:
        if not self._as_json:
            self._console.print(text, soft_wrap=True)
            self._console.file.flush()

    def _waiting(self) -> AbstractContextManager[object]:
        """A spinner while no message arrives; nothing in a pipe."""
        if self._as_json or not self._console.is_terminal:
            return nullcontext()
        return self._console.status("waiting for the next message to fall due")


def demo(server: Server = None, as_json: Json = False) -> None:
    """Send a few delayed messages and show their arrival.

    Needs a running cluster.

    \b
    Examples:
      duetime demo
      duetime demo --server gateway.example.com:9800
    """

    async def work() -> bool:
        return await Demo(await reach(server), as_json=as_json, ours=False).run()

    if not asyncio.run(work()):
        raise typer.Exit(1)


def _next_steps(server: str, ours: bool) -> str:
    command = "duetime" if shutil.which("duetime") else sys.argv[0]
    option = "" if server.rpartition(":")[2] == SERVER_DEFAULT.rpartition(":")[2] else f" --server {server}"
    invitation = "The cluster stays up until Ctrl-C. Try next, in another terminal:" if ours else "Try next:"
    return f"""
{invitation}

  {command} send orders "cancel 42" --delay 5s{option}
  {command} pull orders --follow{option}
  {command} lanes{option}
"""
