"""`duetime dlq`: list, show, redrive and discard the dead letters of a group."""

import asyncio
import sys
import textwrap
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import attempt_objects, body_object
from duetime.cli.options import (
    DryRun,
    GroupName,
    Json,
    Max,
    OfError,
    OfIds,
    OfKey,
    OfTopic,
    Server,
    Yes,
    check_named,
    confirm_discard,
    given,
    grouped,
    show_help,
    span,
    watched,
)
from duetime.cli.output import iso, local, on_one_line, print_json
from duetime.client.errors import Damaged, NotFound
from duetime.client.finding.dead_letters import AsyncDeadLetters, DeadLetter, DeadLetterCriteria, DeadLetterResult

# Interval of progress reports of a redrive or discard.
PROGRESS_S = 2.0

_HELP = """List, show, redrive and discard dead letters.

Dead letters are messages that a group could not handle.

\b
Examples:
  duetime dlq list billing --error timeout
  duetime dlq show billing 7F0000010001070D0D0D000000000000
  duetime dlq redrive billing --error timeout --rate 50 --dry-run
  duetime dlq discard billing --to 2026-01-01T12:00 --yes
"""

dlq = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Dead letters since this time, such as 2026-01-01T12:00."),
]
_To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Dead letters up to this time.")]
_Tag = Annotated[str | None, typer.Option(metavar="TAG", help="Only messages with this tag.")]
_Rate = Annotated[float, typer.Option(min=0, metavar="N", help="Max per second; 0: no limit.")]
dlq.callback()(show_help)


@dataclass
class LetterOptions:
    """A filter of dead letters."""

    since: _From = None
    until: _To = None
    error: OfError = None
    tag: _Tag = None
    key: OfKey = None
    ids: OfIds = None
    topic: OfTopic = None

    def criteria(self) -> DeadLetterCriteria:
        """Raises: BadParameter."""
        start, end = span(("--from", self.since), ("--to", self.until))
        return DeadLetterCriteria(
            start=start,
            end=end,
            error=given("--error", self.error),
            tag=given("--tag", self.tag),
            key=given("--key", self.key),
            ids=self.ids or [],
            topic=given("--topic", self.topic),
        )


@dataclass
class DeadLetterJobOptions:
    """The pace and the extent of a redrive or a discard."""

    rate: _Rate = 0.0
    dry_run: DryRun = False
    count_max: Max = None


@dlq.command("list")
@watched
@grouped
def list_letters(
    group: GroupName,
    wanted: LetterOptions,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first, of all shards together.")] = False,
    count_max: Max = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the dead letters of a group.

    Lists the matches of all options, shard by shard, oldest first; with --newest by time, newest first. With --json, a
    body that is not UTF-8 is in `body_base64` instead of `body`.

    \b
    Examples:
      duetime dlq list billing
      duetime dlq list billing --newest --max 10
      duetime dlq list billing --from 2026-01-01T12:00 --error 'TimeoutError: bank'
      duetime dlq list billing --topic orders --tag paid --json | jq -r .id
    """
    asyncio.run(_list(server, group, wanted.criteria(), newest, count_max, as_json))


async def _list(
    server: str | None, group: str, criteria: DeadLetterCriteria, newest: bool, count_max: int | None, as_json: bool
) -> None:
    left = most = sys.maxsize if count_max is None else count_max
    found_ids: set[str] = set()
    async with (
        AsyncDeadLetters(await reach(server), group, timeout=CALL_TIMEOUT) as letters,
        aclosing(letters.list(newest_first=newest, **criteria)) as found,
    ):
        async for letter in found:
            if as_json:
                print_json(letter_object(letter))
            else:
                echo(letter_line(letter))
            found_ids.add(letter.id)
            left -= 1
            if not left:
                return
    check_named(group, "dead letter", criteria["ids"], found_ids)
    if left == most:
        which = " that match the options" if any(criteria.values()) else ""
        echo(f"duetime: group {group} has no dead letters{which}", err=True)


@dlq.command("show")
def show(
    group: GroupName,
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a dead letter with its attempts and body.

    Shows several if messages share an id.

    \b
    Examples:
      duetime dlq show billing 7F0000010001070D0D0D000000000000
      duetime dlq show billing 7F0000010001070D0D0D000000000000 --json | jq .attempts
    """
    asyncio.run(_show(server, group, message_id, as_json))


async def _show(server: str | None, group: str, message_id: str, as_json: bool) -> None:
    async with AsyncDeadLetters(await reach(server), group, timeout=CALL_TIMEOUT) as letters:
        found = [letter async for letter in letters.list(ids=[message_id])]
    if not found:
        raise NotFound(f"group {group} has no dead letter {message_id}", reason="MESSAGE_NOT_FOUND")
    for letter in found:
        if as_json:
            print_json(letter_object(letter))
        else:
            echo(letter_page(letter))


@dlq.command("redrive")
@grouped
def redrive(
    group: GroupName,
    wanted: LetterOptions,
    options: DeadLetterJobOptions,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Return dead letters to their group.

    They are redriven at once, with a new count of attempts. Prints one line for each; exit code 1 if one could not be
    redriven. A message that fails again becomes a dead letter again, with its history. After an interruption, the same
    command continues with the rest: no message is redriven twice.

    \b
    Examples:
      duetime dlq redrive billing --dry-run
      duetime dlq redrive billing --error timeout --rate 50
      duetime dlq redrive billing --id 7F0000010001070D0D0D000000000000
    """
    asyncio.run(_end(server, group, wanted.criteria(), _DeadLetterAction("redrive", options, as_json)))


@dlq.command("discard")
@grouped
def discard(
    group: GroupName,
    wanted: LetterOptions,
    options: DeadLetterJobOptions,
    yes: Yes = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good.

    Prints one line for each. After an interruption, the same command continues with the rest.

    \b
    Examples:
      duetime dlq discard billing --error 'UserDeleted' --dry-run
      duetime dlq discard billing --to 2026-01-01T12:00 --yes
    """
    criteria = wanted.criteria()
    if not (yes or options.dry_run):
        confirm_discard("dead letters", group, are_all=not any(criteria.values()), dry_run="list")
    asyncio.run(_end(server, group, criteria, _DeadLetterAction("discard", options, as_json)))


class _DeadLetterAction:
    """A redrive or a discard: its options and its outcomes so far."""

    def __init__(self, name: str, options: DeadLetterJobOptions, as_json: bool) -> None:
        self.name = name
        self._options = options
        self.as_json = as_json
        self.outcomes: Counter[str] = Counter()
        self.ids: set[str] = set()
        self._reported_at = time.monotonic()

    @property
    def is_limited(self) -> bool:
        """It ended at --max: more may match."""
        return self.outcomes.total() == self._options.count_max

    def results(
        self, letters: AsyncDeadLetters, criteria: DeadLetterCriteria
    ) -> AsyncGenerator[DeadLetterResult, None]:
        work = letters.redrive if self.name == "redrive" else letters.discard
        options = self._options
        return work(rate=options.rate, dry_run=options.dry_run, max=options.count_max, **criteria)

    def report(self, result: DeadLetterResult) -> None:
        self.outcomes[result.outcome] += 1
        self.ids.add(result.id)
        if self.as_json:
            print_json(result_object(result))
        else:
            words = f"would {self.name}" if result.outcome == "matched" else result.outcome
            echo(f"{words}  {result.id}{f'  ({result.error})' if result.error else ''}")
        sys.stdout.flush()
        if time.monotonic() - self._reported_at >= PROGRESS_S:
            self.report_progress()

    def report_progress(self, ending: str = "") -> None:
        self._reported_at = time.monotonic()
        if self._options.dry_run:
            done = f"would {self.name} {self.outcomes['matched']}; nothing was changed"
        else:
            done = ", ".join(f"{name} {count}" for name, count in self.outcomes.items())
            done = done or f"nothing to {self.name}"
        echo(f"duetime: {done}{ending}", err=True)


async def _end(server: str | None, group: str, criteria: DeadLetterCriteria, job: _DeadLetterAction) -> None:
    address = await reach(server)
    async with AsyncDeadLetters(address, group, timeout=CALL_TIMEOUT) as letters:
        try:
            async with aclosing(job.results(letters, criteria)) as results:
                async for result in results:
                    job.report(result)
        except BaseException:
            if job.outcomes:
                job.report_progress("; interrupted, the same command continues with the rest")
            raise
    job.report_progress()
    if not job.is_limited:
        check_named(group, "dead letter", criteria["ids"], job.ids)
    if job.outcomes["failed"]:
        raise typer.Exit(1)


def letter_line(letter: DeadLetter) -> str:
    """A dead letter for people."""
    parts = [local(letter.dead_at), letter.id, _origin(letter)]
    parts += [f"tags={printable(letter.tags)}"] if letter.tags else []
    parts += [f"keys={printable(','.join(letter.keys))}"] if letter.keys else []
    parts += [f"attempts={len(letter.attempts)}"] if letter.attempts else []
    parts += [f"redriven={letter.redriven_count}"] if letter.redriven_count else []
    parts += [printable(letter.reason)] if letter.reason else []
    parts += [on_one_line(letter.error.encode())] if letter.error else []
    return "  ".join(parts)


def letter_page(letter: DeadLetter) -> str:
    """All fields of a dead letter, for people."""
    shard, queue, offset = letter.place
    lines = [
        f"id          {letter.id}",
        f"from        {_origin(letter)}",
        f"died        {local(letter.dead_at)}  {printable(letter.reason) or 'unknown: from a RocketMQ broker'}",
        f"stored in   %DLQ%{letter.group}/{queue}@{offset}, shard {shard}",
        f"born        {local(letter.born_at)}",
    ]
    lines += [f"tags        {printable(letter.tags)}"] if letter.tags else []
    lines += [f"keys        {printable(', '.join(letter.keys))}"] if letter.keys else []
    lines += [f"priority    {letter.priority}"] if letter.priority is not None else []
    lines += [f"expires     {local(letter.expires_at)}"] if letter.expires_at is not None else []
    lines += [f"redriven    {letter.redriven_count} times"] if letter.redriven_count else []
    lines += [f"property    {printable(f'{name}={value}')}" for name, value in letter.properties.items()]
    for one in letter.attempts:
        lines += ["", f"attempt {one.attempt}   received {local(one.received_at)}, failed {local(one.failed_at)}"]
        error = f"{one.error_type}: {one.error_message}" if one.error_message else one.error_type
        lines += [textwrap.indent(text, "  ") for text in (error, one.trace.rstrip()) if text]
    lines += ["", "body"]
    try:
        lines.append(textwrap.indent(letter.body.decode("utf-8", "backslashreplace"), "  "))
    except Damaged as error:
        lines.append(f"  ({error})")
    return "\n".join(lines) + "\n"


def _origin(letter: DeadLetter) -> str:
    return f"{letter.topic or 'an unknown topic'}/{letter.queue}@{letter.offset}"


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter for machines."""
    shard, queue, offset = letter.place
    return {
        "id": letter.id,
        "group": letter.group,
        "topic": letter.topic,
        "queue": letter.queue,
        "offset": letter.offset,
        **body_object(letter),
        "tags": letter.tags,
        "keys": letter.keys,
        "properties": letter.properties,
        "priority": letter.priority,
        "expires_at": iso(letter.expires_at),
        "born_at": iso(letter.born_at),
        "dead_at": iso(letter.dead_at),
        "reason": letter.reason or None,
        "error": letter.error or None,
        "attempts": attempt_objects(letter.attempts),
        "redriven_count": letter.redriven_count,
        "shard": shard,
        "dlq_queue": queue,
        "dlq_offset": offset,
    }


def result_object(result: DeadLetterResult) -> dict[str, Any]:
    """The result for a dead letter, for machines."""
    shard, queue, offset = result.place
    error = None if result.error is None else {"reason": result.error.reason, "text": result.error.text}
    return {
        "id": result.id,
        "outcome": result.outcome,
        "shard": shard,
        "dlq_queue": queue,
        "dlq_offset": offset,
        "error": error,
    }
