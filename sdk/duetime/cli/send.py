"""`duetime send`: a message from an argument, a file or standard input, or one per line, optionally as a batch."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from duetime_format.limits import BATCH_BYTES_MAX, SEND_COUNT_MAX
from duetime_format.printing import echo

from duetime.cli.gateway import reach
from duetime.cli.options import Delay, DeliverAt, Json, Server, due_time, grouped, length, properties_of
from duetime.cli.output import iso, local, print_json
from duetime.client.errors import DueTimeError
from duetime.client.message import Message, Receipt
from duetime.client.sending.outcomes import Outcome
from duetime.client.sending.packs import is_plain
from duetime.client.sending.producer import AsyncProducer

if TYPE_CHECKING:
    from rich.progress import Progress

READ_BYTES = 1024 * 1024
ERRORS_SHOWN = 10

_LiteTopic = Annotated[
    str, typer.Option(metavar="NAME", help="The lite topic, for a topic of the type lite; without a delay.")
]
_Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Created if it does not exist, unless the server forbids it.")
]
_Replace = Annotated[bool, typer.Option("--replace", help="Replace the pending message with the same --key.")]
_Body = Annotated[str, typer.Argument(metavar="BODY|@PATH|-", help="The body; @PATH: a file; -: standard input.")]


@dataclass
class DelayOptions:
    """The delay of messages, and the pending message that they replace."""

    delay: Delay = None
    deliver_at: DeliverAt = None
    level: Annotated[int | None, typer.Option(help="The delay as a level, from 1, instead of --delay.")] = None
    replace: _Replace = False
    max_wait: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="With --replace: latest due time after the first message.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Raises: BadParameter."""
        if (self.delay is not None) + (self.level is not None) + (self.deliver_at is not None) > 1:
            raise typer.BadParameter("give one of --delay, --deliver-at and --level")
        for option, text in (("--delay", self.delay), ("--max-wait", self.max_wait)):
            if text is not None:
                length(option, text)
        return asdict(self) | {"deliver_at": due_time("--deliver-at", self.deliver_at)}


@dataclass
class FieldOptions:
    """Further fields of messages."""

    tags: Annotated[str, typer.Option(help="The tag, for filters.")] = ""
    key: Annotated[list[str] | None, typer.Option(help="A business key; may be repeated.")] = None
    prop: Annotated[list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")] = None
    queue: Annotated[int | None, typer.Option(help="The queue. Default: by sharding key, otherwise in turn.")] = None
    sharding_key: Annotated[str, typer.Option(help="Messages with equal keys go to the same queue.")] = ""
    priority: Annotated[int | None, typer.Option(help="From 0, for a topic of the type priority.")] = None
    lite_topic: _LiteTopic = ""
    expires: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Do not deliver it to groups this long after it is due.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Raises: BadParameter."""
        if self.expires is not None:
            length("--expires", self.expires)
        values = asdict(self)
        return values | {"keys": values.pop("key") or (), "properties": properties_of(values.pop("prop") or [])}


@grouped
def send(
    *,
    topic: _Topic,
    body: _Body = "-",
    delay: DelayOptions,
    lines: Annotated[bool, typer.Option("--lines", help="Send each line as a message.")] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Send the lines as one batch: all are stored, in one queue, or none.")
    ] = False,
    fields: FieldOptions,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Send a message, to arrive now or later.

    \b
    Examples:
      duetime send orders "cancel 42" --delay 1h30m
      duetime send orders "wake up" --deliver-at 2026-12-24T18:00:00Z
      duetime send carts @cart.json --delay 30m --replace --key cart-42 --max-wait 2h
      seq 100000 | duetime send orders --lines --delay 1m
      duetime send alerts "the pump is off" --priority 7
      duetime send codes "8173" --expires 5m
      duetime send rooms "good morning" --lite-topic room-42
      duetime send orders @items.txt --batch --sharding-key order-42
    """
    if batch and delay.replace:
        raise typer.BadParameter("give either --batch or --replace: a batch replaces no messages")
    make = partial(Message, topic, **delay.fields(), **fields.fields())
    with ExitStack() as opened:
        if body == "-" and sys.stdin.isatty():
            raise typer.BadParameter("BODY is missing, and standard input is a terminal")
        work = _send_batch if batch else _send_lines if lines else _send_one
        failed = asyncio.run(work(server, make, BodySource(body, opened), as_json))
    if failed:
        raise typer.Exit(1)


class BodySource:
    """The source of bodies; `size` in bytes, None while unknown."""

    def __init__(self, body: str, opened: ExitStack) -> None:
        self._text = body.encode("utf-8", "surrogateescape")
        self._file: BinaryIO | None = None
        self.size: int | None = len(self._text)
        if body == "-":
            self._file, self.size = sys.stdin.buffer, None
        elif body.startswith("@"):
            self._file = opened.enter_context(open(body[1:], "rb"))  # noqa: SIM115  the stack closes it
            self.size = os.fstat(self._file.fileno()).st_size

    def read(self) -> bytes:
        return self._text if self._file is None else self._file.read()

    def line_groups(self) -> Iterator[list[bytes]]:
        """Lines without line ends, in groups that can be read without waiting."""
        if self._file is None:
            yield self._text.split(b"\n")
            return
        rest = b""
        while part := self._file.read1(READ_BYTES):  # type: ignore[attr-defined]
            *whole, rest = (rest + part).split(b"\n")
            if whole:
                yield whole
        if rest:
            yield [rest]


async def _send_one(server: str | None, make: Callable[..., Message], source: BodySource, as_json: bool) -> int:
    async with AsyncProducer(await reach(server)) as producer:
        receipt = await producer.send_message(make(source.read()))
    if as_json:
        print_json(receipt_object(receipt))
    else:
        echo(receipt_line(receipt))
    return 0


async def _send_batch(server: str | None, make: Callable[..., Message], source: BodySource, as_json: bool) -> int:
    """Sends all lines as one batch. The limits are checked here too: input may be endless."""
    bodies: list[bytes] = []
    size = 0
    for group in source.line_groups():
        bodies += group
        size += sum(map(len, group))
        if len(bodies) > SEND_COUNT_MAX:
            raise typer.BadParameter(f"--batch: more than {SEND_COUNT_MAX:,} lines, the limit of a batch")
        if size > BATCH_BYTES_MAX:
            raise typer.BadParameter(f"--batch: more than {BATCH_BYTES_MAX:,} bytes, the limit of a batch")
    if not bodies:
        raise typer.BadParameter("--batch: no lines to send")
    whole, messages = make(b""), [make(body, queue=None, sharding_key="") for body in bodies]
    async with AsyncProducer(await reach(server)) as producer:
        receipts = await producer.send_batch(whole.topic, messages, queue=whole.queue, sharding_key=whole.sharding_key)
    if as_json:
        for receipt in receipts:
            print_json(receipt_object(receipt))
        return 0
    first, last = receipts[0], receipts[-1]
    where = f"{whole.topic}/{first.queue}" + ("" if first.lane else f"@{first.offset} to @{last.offset}")
    due = f", due {local(first.deliver_at)}" if first.lane else ""
    echo(f"sent {len(receipts):,} messages to {where}{due}, all or none")
    return 0


async def _send_lines(server: str | None, make: Callable[..., Message], source: BodySource, as_json: bool) -> int:
    """Sends each line; returns how many failed. Prints the first errors, or all of them with --json."""
    began, sent, failed = time.monotonic(), 0, 0
    with progress_bar(source.size) as progress:
        task = progress.add_task("sending", total=source.size, sent="")
        async with AsyncProducer(await reach(server)) as producer:
            groups = source.line_groups()
            # Reading may wait for a slow pipe; the event loop must keep the connection alive.
            while group := await asyncio.to_thread(next, groups, None):
                for outcome in await _send_group(producer, make, group):
                    failed += isinstance(outcome, DueTimeError)
                    sent += isinstance(outcome, Receipt)
                    _print_outcome(outcome, as_json, failed)
                progress.update(task, advance=sum(map(len, group)) + len(group), sent=f"{sent:,} sent")
    took_s = time.monotonic() - began
    if not as_json:
        rejected = f", {failed:,} rejected" if failed else ""
        echo(f"sent {sent:,} messages to {make(b'').topic} in {took_s:.1f} s{rejected}")
    return failed


async def _send_group(producer: AsyncProducer, make: Callable[..., Message], lines: list[bytes]) -> Sequence[Outcome]:
    """Sends lines that differ in the body only as bodies."""
    one = make(b"")
    if not is_plain(one):
        return await producer.send_many([make(line) for line in lines], errors="return")
    return await producer.send_many(
        one.topic,
        bodies=lines,
        delay=one.delay,
        level=one.level,
        deliver_at=one.deliver_at,
        tags=one.tags,
        errors="return",
    )


def _print_outcome(outcome: Outcome, as_json: bool, failed: int) -> None:
    if as_json:
        print_json(receipt_object(outcome) if isinstance(outcome, Receipt) else error_object(outcome))
    elif isinstance(outcome, DueTimeError):
        if failed <= ERRORS_SHOWN:
            echo(f"duetime: {outcome}", err=True)
        if failed == ERRORS_SHOWN:
            echo("duetime: more errors occurred; --json shows all", err=True)


def progress_bar(size: int | None) -> "Progress":
    """A bar on standard error at a terminal; nothing in a pipe."""
    # Imported where it is needed: one message needs no bar.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[sent]}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def receipt_line(receipt: Receipt) -> str:
    """A receipt for people."""
    where = f"{receipt.message_id} {receipt.topic}/{receipt.queue}"
    line = f"{where}@{receipt.offset}" if receipt.lane is None else f"{where}, due {local(receipt.deliver_at)}"
    if receipt.level is not None:
        line += f" (level {receipt.level})"
    if receipt.requested_level is not None:
        line += f"; level {receipt.requested_level} is above the highest, {receipt.level}"
    line += "; in the past: delivered now" if receipt.was_past else ""
    line += f"; replaces {receipt.replaced_id}" if receipt.replaced_id else ""
    return line + ("; already stored" if receipt.duplicate else "")


def receipt_object(receipt: Receipt) -> dict[str, Any]:
    """A receipt for machines."""
    return {
        "id": receipt.message_id,
        "topic": receipt.topic,
        "shard": receipt.shard,
        "queue": receipt.queue,
        "offset": receipt.offset,
        "lane": receipt.lane,
        "level": receipt.level,
        "due_at": iso(receipt.deliver_at),
        "was_past": receipt.was_past,
        "replaced_id": receipt.replaced_id,
        "requested_level": receipt.requested_level,
        "duplicate": receipt.duplicate,
    }


def error_object(error: DueTimeError) -> dict[str, Any]:
    """A rejection for machines."""
    violations = [{"field": v.field, "description": v.description} for v in error.violations]
    return {
        "id": error.message_id,
        "error": {"reason": error.reason, "message": error.text, "violations": violations},
    }
