"""`duetime transactions`: list, show, commit and roll back transactions, for operators."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import body_object, content_lines
from duetime.cli.options import Json, Limit, OfTopic, Server, Yes, given, length, show_help, watched
from duetime.cli.output import about, error_text, iso, local, now_ms, print_json
from duetime.client.errors import DueTimeError
from duetime.client.finding.finder import AsyncFinder
from duetime.client.finding.transactions import FoundTransaction
from duetime.client.message import Receipt, at_ms
from duetime.client.sending.producer import AsyncProducer
from duetime.client.sending.transacting import Ended
from duetime.client.transaction import Decision

# Concurrent look-ups of transactions.
LOOKUPS_MAX = 16
_STDIN = "-"

_HELP = """List, show, commit and roll back transactions.

Lists open transactions, and those that were given up.

\b
Examples:
  duetime transactions list --group billing --older-than 1h
  duetime transactions show 7F0000010001070D0D0D000000000000
  duetime transactions commit 7F0000010001070D0D0D000000000000
  duetime transactions list --state given-up --json | jq -r .id | duetime transactions rollback - --yes
"""

transactions = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)


class TransactionFilterState(StrEnum):
    """States of listed transactions."""

    OPEN = "open"
    GIVEN_UP = "given-up"


_Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Transaction ids or ids of their messages; -: one per line of stdin."),
]
_Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic that the message goes to.")]
transactions.callback()(show_help)


@transactions.command("list")
@watched
def list_command(
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this producer group.")] = None,
    topic: OfTopic = None,
    state: Annotated[TransactionFilterState | None, typer.Option("--state", help="Default: both.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="LENGTH", help="Only transactions older than this: 90s, 1h30m, 2d."),
    ] = None,
    limit: Limit = 100,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List transactions, open or given up.

    Lists the oldest of each shard first: age, group, checks so far.

    \b
    Examples:
      duetime transactions list
      duetime transactions list --group billing --topic orders --older-than 10m
      duetime transactions list --state given-up --limit 1000 --json | jq -r .id
    """
    before = None
    if older_than is not None:
        before = datetime.now(UTC) - timedelta(milliseconds=length("--older-than", older_than))
    wanted: Literal["open", "given up"] | None = None
    if state is not None:
        wanted = "open" if state is TransactionFilterState.OPEN else "given up"
    asyncio.run(_list(server, given("--group", group), given("--topic", topic), wanted, before, limit, as_json))


async def _list(
    server: str | None,
    group: str,
    topic: str,
    state: Literal["open", "given up"] | None,
    before: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    count = 0
    async with (
        AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder,
        aclosing(finder.transactions(group, topic=topic, state=state, prepared_before=before)) as found,
    ):
        async for one in found:
            if count == limit:
                echo("duetime: more transactions exist; raise --limit", err=True)
                return
            count += 1
            if as_json:
                print_json(transaction_object(one))
            else:
                echo(transaction_line(one))
    if not count and not as_json:
        which = " that matches the options" if group or topic or state or before else ""
        echo(f"no transaction{which} is open or was given up")


@transactions.command("show")
def show(
    transaction: Annotated[str, typer.Argument(metavar="ID", help="The transaction's id, or the id of its message.")],
    topic: _Topic = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a transaction in any state, with its message.

    A message's id names one transaction of each topic; without --topic, an id of several topics is rejected.

    \b
    Examples:
      duetime transactions show 7F0000010001070D0D0D000000000000
      duetime transactions show order-42 --topic orders --json | jq .state
    """
    found = asyncio.run(_show(server, transaction, given("--topic", topic)))
    if as_json:
        print_json(transaction_object(found) | _details(found))
    else:
        echo(_page(found))


async def _show(server: str | None, transaction: str, topic: str) -> FoundTransaction:
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        return await finder.transaction(transaction, topic=topic)


@transactions.command("commit")
def commit(ids: _Ids, topic: _Topic = None, yes: Yes = False, server: Server = None, as_json: Json = False) -> None:
    """Commit transactions.

    Also those that were given up. Their messages go to their topics; delays count from now. Prints one line for each;
    exit code 1 if one is not committed afterwards: it was rolled back before, or is not found.

    \b
    Examples:
      duetime transactions commit 7F0000010001070D0D0D000000000000
      duetime transactions commit order-42 --topic orders
      duetime transactions list --group billing --json | jq -r .id | duetime transactions commit - --yes
    """
    _end(server, ids, given("--topic", topic), Decision.COMMIT, yes, as_json)


@transactions.command("rollback")
def rollback(ids: _Ids, topic: _Topic = None, yes: Yes = False, server: Server = None, as_json: Json = False) -> None:
    """Roll transactions back.

    Also those that were given up. Their messages are never delivered. Prints one line for each; exit code 1 if one is
    not rolled back afterwards: it was committed before, or is not found.

    \b
    Examples:
      duetime transactions rollback 7F0000010001070D0D0D000000000000
      duetime transactions rollback order-42 --topic orders
      duetime transactions list --state given-up --json | jq -r .id | duetime transactions rollback - --yes
    """
    _end(server, ids, given("--topic", topic), Decision.ROLLBACK, yes, as_json)


def _end(server: str | None, ids: Sequence[str], topic: str, decision: Decision, yes: bool, as_json: bool) -> None:
    if not yes and (_STDIN in ids or not sys.stdin.isatty()):
        raise typer.BadParameter("a decision is final: give --yes")
    every = [one for given_id in ids for one in (_lines_of_stdin() if given_id == _STDIN else [given_id])]
    asyncio.run(_decide(server, every, topic, decision, yes, as_json))


def _lines_of_stdin() -> list[str]:
    return [line.strip() for line in sys.stdin if line.strip()]


async def _decide(
    server: str | None, ids: Sequence[str], topic: str, decision: Decision, yes: bool, as_json: bool
) -> None:
    address = await reach(server)
    async with AsyncFinder(address, timeout=CALL_TIMEOUT) as finder:
        found = await _find_all(finder, ids, topic)
    known = [one for one in found if isinstance(one, FoundTransaction)]
    if known and not yes:
        typer.confirm(_question(known, decision), abort=True)
    async with AsyncProducer(address, timeout=CALL_TIMEOUT) as producer:
        outcomes = iter(await producer.end_many(known, decision, given_up=True, errors="return"))
    wanted = "committed" if decision is Decision.COMMIT else "rolled back"
    words: Counter[str] = Counter()
    for given_id, one in zip(ids, found, strict=True):
        outcome = next(outcomes) if isinstance(one, FoundTransaction) else one
        word = _word(outcome)
        words[word] += 1
        if as_json:
            print_json({"id": given_id, "result": word} | _outcome_object(one, outcome))
        else:
            echo(_outcome_line(given_id, word, outcome))
    if len(ids) > 1 and not as_json:
        echo(f"duetime: {', '.join(f'{word} {count:,}' for word, count in words.items())}", err=True)
    if words[wanted] < len(ids):
        raise typer.Exit(1)


async def _find_all(finder: AsyncFinder, ids: Sequence[str], topic: str) -> list[FoundTransaction | DueTimeError]:
    """The transaction or error of each id, in order."""

    async def find(given_id: str) -> FoundTransaction | DueTimeError:
        try:
            return await finder.transaction(given_id, topic=topic)
        except DueTimeError as error:
            return error

    found: list[FoundTransaction | DueTimeError] = []
    for at in range(0, len(ids), LOOKUPS_MAX):
        found += await asyncio.gather(*map(find, ids[at : at + LOOKUPS_MAX]))
    return found


def _question(found: Sequence[FoundTransaction], decision: Decision) -> str:
    verb = "Commit" if decision is Decision.COMMIT else "Roll back"
    groups = ", ".join(sorted({one.group for one in found}))
    if len(found) == 1:
        (one,) = found
        return f"{verb} transaction {one.id} of {groups}, {one.state}, to topic {one.topic}?"
    return f"{verb} {len(found):,} transactions of {groups}?"


def _word(outcome: Ended | DueTimeError) -> str:
    if isinstance(outcome, Ended):
        return outcome.state
    return "not found" if getattr(outcome, "reason", "") == "TRANSACTION_NOT_FOUND" else "not known"


def _outcome_line(given_id: str, word: str, outcome: Ended | DueTimeError) -> str:
    if isinstance(outcome, DueTimeError):
        return f"{word}  {given_id}  ({error_text(outcome)})"
    before = "  (before)" if outcome.duplicate else ""
    receipt = outcome.receipt
    due = f"  due {local(receipt.deliver_at)}" if receipt is not None and receipt.deliver_at else ""
    return f"{word}  {given_id}{due}{before}"


def _outcome_object(found: FoundTransaction | DueTimeError, outcome: Ended | DueTimeError) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if isinstance(found, FoundTransaction):
        fields |= {"transaction": found.id, "message_id": found.message_id, "group": found.group, "topic": found.topic}
    if isinstance(outcome, Ended):
        fields |= {"duplicate": outcome.duplicate} | _receipt_object(outcome.receipt)
    if isinstance(outcome, DueTimeError):
        fields["error"] = {"reason": outcome.reason, "message": error_text(outcome)}
    return fields


def _receipt_object(receipt: Receipt | None) -> dict[str, Any]:
    if receipt is None:
        return {}
    return {
        "queue": receipt.queue,
        "offset": receipt.offset,
        "lane": receipt.lane,
        "due_at": iso(receipt.deliver_at),
    }


def _age_ms(one: FoundTransaction) -> int:
    return max(now_ms() - at_ms(one.prepared_at), 0)


def transaction_line(one: FoundTransaction) -> str:
    """A transaction for people."""
    checked = f"{one.checks} check{'' if one.checks == 1 else 's'}"
    parts = [one.state, f"{about(_age_ms(one))} old", one.group, f"{one.topic}/{one.queue}", checked]
    parts += [f"next {local(one.next_check_at)}"] if one.next_check_at else []
    return "  ".join([*parts, one.message_id, one.id])


def transaction_object(one: FoundTransaction) -> dict[str, Any]:
    """A transaction for machines."""
    return {
        "id": one.id,
        "message_id": one.message_id,
        "group": one.group,
        "topic": one.topic,
        "queue": one.queue,
        "shard": one.shard,
        "state": one.state,
        "prepared_at": iso(one.prepared_at),
        "age_ms": _age_ms(one),
        "checks": one.checks,
        "next_check_at": iso(one.next_check_at),
        "ended_at": iso(one.ended_at),
    }


def _details(one: FoundTransaction) -> dict[str, Any]:
    message = one.message
    fields: dict[str, Any] = {}
    if message is not None:
        fields = {**body_object(message), "tags": message.tags, "keys": message.keys, "properties": message.properties}
    receipt = _receipt_object(one.receipt)
    return fields | ({"receipt": receipt} if receipt else {})


def progress_lines(one: FoundTransaction) -> list[str]:
    """The progress of a transaction, for people."""
    lines = [f"prepared    {local(one.prepared_at)}, {about(_age_ms(one))} ago", f"checks      {one.checks}"]
    lines += [f"next check  {local(one.next_check_at)}"] if one.next_check_at else []
    return [*lines, *([f"ended       {local(one.ended_at)}"] if one.ended_at else [])]


def _page(one: FoundTransaction) -> str:
    lines = [
        f"transaction {one.id}",
        f"message     {one.message_id}",
        f"group       {one.group}",
        f"state       {one.state}",
        f"topic       {one.topic}/{one.queue}",
        f"shard       {one.shard}",
        *progress_lines(one),
    ]
    receipt, message = one.receipt, one.message
    if receipt is not None:
        place = f"lane {receipt.lane}, due {local(receipt.deliver_at)}" if receipt.lane else f"offset {receipt.offset}"
        lines.append(f"message in  {place}")
    if message is None:
        return "\n".join([*lines, "", "(the half message has left the log)"])
    return "\n".join([*lines, *content_lines(message)])
