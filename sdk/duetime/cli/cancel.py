"""`duetime cancel` and `duetime reschedule`: end pending messages, or change their due time."""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.options import Delay, DeliverAt, Json, Server, Yes, content_of, due_time, given, grouped, length, span
from duetime.cli.output import error_text, iso, local, print_json
from duetime.client.errors import DueTimeError
from duetime.client.message import CancelResult
from duetime.client.sending.ending import CancelProgress, Rescheduled
from duetime.client.sending.producer import AsyncProducer


@dataclass
class CancelOptions:
    """A filter of pending messages."""

    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="All messages of this topic; with IDs: the topic of the ids."),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="With --topic or a time: only messages with this key.")
    ] = None
    since: Annotated[str | None, typer.Option("--due-from", metavar="TIME", help="All messages due then or later.")] = (
        None
    )
    until: Annotated[
        str | None,
        typer.Option("--due-before", metavar="TIME", help="All messages due before, such as 2026-12-24T18:00."),
    ] = None

    def criteria(self) -> dict[str, Any]:
        """Raises: BadParameter."""
        after, before = span(("--due-from", self.since), ("--due-before", self.until))
        return {
            "topic": given("--topic", self.topic),
            "key": given("--key", self.key),
            "after": after,
            "before": before,
        }


@grouped
def cancel(
    *,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="The messages' ids.")] = None,
    options: CancelOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the matches.")] = False,
    yes: Yes = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Cancel pending messages, by id or by filter.

    Cancelled messages are never delivered. Prints one line for each id; exit code 1 if one had fired already or was not
    found. With a filter it prints the progress; after an interruption, the same command continues.

    \b
    Examples:
      duetime cancel 7F0000010001070D0D0D000000000000
      duetime cancel order-42 --topic orders
      duetime cancel --topic orders --key 42 --yes
      duetime cancel --topic orders --due-before 2026-12-24T18:00 --dry-run
    """
    by_time = options.since is not None or options.until is not None
    if by_time if ids else not (by_time or options.topic is not None):
        raise typer.BadParameter("give IDs, or --topic, --due-from or --due-before")
    if ids:
        if options.key is not None or dry_run:
            raise typer.BadParameter("--key and --dry-run need --topic or a time; they can't be combined with IDs")
        asyncio.run(_cancel(server, ids, given("--topic", options.topic), as_json))
        return
    wanted = options.criteria()
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise typer.BadParameter("cancelled messages are never delivered: give --yes, or --dry-run to count them")
        counted = asyncio.run(_match(server, wanted, True, as_json, shown=False))
        if not counted.matched:
            echo("nothing to cancel")
            return
        of_topic = f" of {options.topic}" if options.topic else ""
        typer.confirm(f"Cancel {counted.matched:,} pending messages{of_topic}?", abort=True)
    asyncio.run(_match(server, wanted, dry_run, as_json))


def reschedule(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    delay: Delay = None,
    deliver_at: DeliverAt = None,
    body: Annotated[str | None, typer.Option(metavar="BODY|@PATH", help="Another body; @PATH: a file.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="The message's topic.")] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Give a pending message another due time.

    Optionally also another body. The message keeps its id and is delivered once. Exit code 1 if it had fired already or
    was not found.

    \b
    Examples:
      duetime reschedule 7F0000010001070D0D0D000000000000 --delay 2h
      duetime reschedule order-42 --deliver-at 2026-12-24T18:00:00Z --body "new text"
    """
    if (delay is None) == (deliver_at is None):
        raise typer.BadParameter("give either --delay or --deliver-at")
    at = due_time("--deliver-at", deliver_at)
    if delay is not None:
        length("--delay", delay)
    content = None if body is None else content_of(body)
    asyncio.run(_reschedule(server, message_id, given("--topic", topic), delay, at, content, as_json))


async def _cancel(server: str | None, ids: Sequence[str], topic: str, as_json: bool) -> None:
    async with AsyncProducer(await reach(server), timeout=CALL_TIMEOUT) as producer:
        results = await producer.cancel(list(ids), topic=topic, errors="return")
    words: Counter[str] = Counter()
    for message_id, result in zip(ids, results, strict=True):
        word = result.value if isinstance(result, CancelResult) else "not known"
        words[word] += 1
        if as_json:
            error = {"error": _error_object(result)} if isinstance(result, DueTimeError) else {}
            print_json({"id": message_id, "result": word} | error)
        else:
            echo(f"{word}  {message_id}{f'  ({error_text(result)})' if isinstance(result, DueTimeError) else ''}")
    if len(ids) > 1 and not as_json:
        echo(f"duetime: {', '.join(f'{word} {count:,}' for word, count in words.items())}", err=True)
    if words[CancelResult.CANCELLED.value] < len(ids):
        raise typer.Exit(1)


async def _match(
    server: str | None, wanted: Mapping[str, Any], dry_run: bool, as_json: bool, *, shown: bool = True
) -> CancelProgress:
    """Returns the last progress. Without `shown` it prints nothing."""
    last = CancelProgress(0, 0, 0, 0, None, done=False)
    async with AsyncProducer(await reach(server), timeout=CALL_TIMEOUT) as producer:
        work = producer.cancel_matching(**wanted, dry_run=dry_run)
        try:
            async with aclosing(work) as steps:
                async for last in steps:
                    if shown and as_json:
                        print_json(asdict(last) | {"looked_until": iso(last.looked_until)})
                    elif shown:
                        echo(f"duetime: {_progress_text(last, dry_run)}", err=True)
        except BaseException:
            if shown and last.cancelled:
                text = f"{last.cancelled:,} are cancelled; interrupted, the same command continues with the rest"
                echo(f"duetime: {text}", err=True)
            raise
    if shown and not as_json:
        echo(_report_text(last, dry_run))
    return last


def _progress_text(progress: CancelProgress, dry_run: bool) -> str:
    done = f"{progress.matched:,} match" if dry_run else f"cancelled {progress.cancelled:,}"
    until = f", up to {local(progress.looked_until)}" if progress.looked_until and not progress.done else ""
    return f"{done} of {progress.seen:,} read{until}"


def _report_text(progress: CancelProgress, dry_run: bool) -> str:
    if dry_run:
        return f"would cancel {progress.matched:,} pending messages; nothing was changed"
    fired = f"; {progress.already_fired:,} were due first" if progress.already_fired else ""
    return f"cancelled {progress.cancelled:,} pending messages{fired}"


async def _reschedule(
    server: str | None,
    message_id: str,
    topic: str,
    delay: str | None,
    at: datetime | None,
    body: bytes | None,
    as_json: bool,
) -> None:
    async with AsyncProducer(await reach(server), timeout=CALL_TIMEOUT) as producer:
        result = await producer.reschedule(message_id, topic=topic, delay=delay, deliver_at=at, body=body)
    print_json(_rescheduled_object(result)) if as_json else echo(_rescheduled_line(result))
    if result.status != "rescheduled":
        raise typer.Exit(1)


def _rescheduled_line(result: Rescheduled) -> str:
    due = f", due {local(result.deliver_at)}" if result.deliver_at else ""
    return f"{result.status}  {result.message_id}{due}{'; in the past: delivered now' if result.was_past else ''}"


def _rescheduled_object(result: Rescheduled) -> dict[str, Any]:
    shard, lane, entry = result.place
    return {
        "id": result.message_id,
        "result": result.status,
        "due_at": iso(result.deliver_at),
        "was_past": result.was_past,
        "shard": shard,
        "lane": lane,
        "entry": entry,
    }


def _error_object(error: DueTimeError) -> dict[str, str]:
    return {"reason": error.reason, "message": error_text(error)}
