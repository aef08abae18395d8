"""`duetime groups retries`, `retry-now` and `discard-retries`: failed messages that wait for their next attempt."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

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
    OfTopic,
    Server,
    Yes,
    check_named,
    confirm_discard,
    given,
    grouped,
    inherited,
)
from duetime.cli.output import iso, local, on_one_line, print_json
from duetime.client.administering.admin import AsyncAdmin
from duetime.client.administering.retries import RetriesProgress, WaitingRetry


@dataclass
class RetryOptions:
    """A filter of waiting retries."""

    topic: OfTopic = None
    error: OfError = None
    ids: OfIds = None

    def criteria(self) -> dict[str, Any]:
        """Raises: BadParameter."""
        topic, error = given("--topic", self.topic), given("--error", self.error)
        return {"topic": topic, "error": error, "ids": self.ids or []}


@grouped
def list_retries(
    context: typer.Context,
    group: GroupName,
    options: RetryOptions,
    count_max: Max = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List failed messages that wait for their next attempt.

    Lists the matches of all options, by next attempt. Failed messages of an ordered group wait in their queues, and are
    not listed. With --json, a body that is not UTF-8 is in `body_base64` instead of `body`.

    \b
    Examples:
      duetime groups retries billing
      duetime groups retries billing --error 'TimeoutError: bank'
      duetime groups retries billing --topic orders --json | jq -r .id
    """
    server, as_json = inherited(context, server, as_json)
    asyncio.run(_list(server, group, options.criteria(), count_max, as_json))


async def _list(
    server: str | None, group: str, wanted: Mapping[str, Any], count_max: int | None, as_json: bool
) -> None:
    left = most = sys.maxsize if count_max is None else count_max
    found_ids: set[str] = set()
    async with (
        AsyncAdmin(await reach(server), timeout=CALL_TIMEOUT) as admin,
        aclosing(admin.retries(group, bodies=as_json, **wanted)) as found,
    ):
        async for retry in found:
            if as_json:
                print_json(_object(retry))
            else:
                echo(_line(retry))
            found_ids.add(retry.id)
            left -= 1
            if not left:
                return
    check_named(group, "waiting retry", wanted["ids"], found_ids)
    if left == most:
        which = " that match the options" if any(wanted.values()) else ""
        echo(f"duetime: group {group} has no waiting retries{which}", err=True)


@grouped
def retry_now(
    context: typer.Context,
    group: GroupName,
    options: RetryOptions,
    dry_run: DryRun = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Deliver waiting retries of a group now.

    Delivers all, or the matches of the options. Their attempts still count: a message whose last delivery fails becomes
    a dead letter. After an interruption, the same command continues with the rest.

    \b
    Examples:
      duetime groups retry-now billing --dry-run
      duetime groups retry-now billing --error 'TimeoutError: bank'
      duetime groups retry-now billing --id 7F0000010001070D0D0D000000000000
    """
    server, as_json = inherited(context, server, as_json)
    asyncio.run(_end(server, group, options.criteria(), dry_run, as_json, discards=False))


@grouped
def discard_retries(
    context: typer.Context,
    group: GroupName,
    options: RetryOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Delete waiting retries of a group for good.

    Deletes all, or the matches of the options: they are never redelivered, and do not become dead letters. After an
    interruption, the same command continues with the rest.

    \b
    Examples:
      duetime groups discard-retries billing --error UserDeleted --dry-run
      duetime groups discard-retries billing --topic orders --yes
    """
    server, as_json = inherited(context, server, as_json)
    wanted = options.criteria()
    if not (yes or dry_run):
        confirm_discard("waiting retries", group, are_all=not any(wanted.values()), dry_run="count")
    asyncio.run(_end(server, group, wanted, dry_run, as_json, discards=True))


async def _end(
    server: str | None, group: str, wanted: Mapping[str, Any], dry_run: bool, as_json: bool, *, discards: bool
) -> None:
    verb, done = ("discard", "discarded") if discards else ("retry", "retried")
    last = RetriesProgress(0, 0, 0, done=False)
    async with AsyncAdmin(await reach(server), timeout=CALL_TIMEOUT) as admin:
        call = admin.discard_retries if discards else admin.retry_now
        work: AsyncGenerator[RetriesProgress, None] = call(group, dry_run=dry_run, **wanted)
        try:
            async with aclosing(work) as progress:
                async for last in progress:
                    if as_json:
                        print_json(asdict(last))
                    elif not last.done:
                        echo(f"duetime: {last.matched:,} match, {done} {last.ended:,}", err=True)
        except BaseException:
            if last.ended:
                text = f"{done} {last.ended:,}; interrupted, the same command continues with the rest"
                echo(f"duetime: {text}", err=True)
            raise
    if not as_json:
        echo(_report(last, dry_run, verb, done))
    # Retries are counted, not named: several may have one id.
    missing = len(set(wanted["ids"])) - last.matched
    if missing > 0:
        echo(f"duetime: {missing} of the ids match no waiting retry with these options", err=True)
        raise typer.Exit(1)


def _report(last: RetriesProgress, dry_run: bool, verb: str, done: str) -> str:
    if dry_run:
        return f"would {verb} {last.matched:,} waiting retries; nothing was changed"
    gone = f"; {last.gone:,} were delivered or discarded by others first" if last.gone else ""
    return f"{done} {last.ended:,} waiting retries{gone}"


def _line(retry: WaitingRetry) -> str:
    parts = [local(retry.next_at), retry.id, retry.topic or "an unknown topic"]
    parts += [f"tags={printable(retry.tags)}"] if retry.tags else []
    parts += [f"keys={printable(','.join(retry.keys))}"] if retry.keys else []
    parts += [f"deliveries={retry.deliveries}"]
    parts += [on_one_line(retry.error.encode())] if retry.error else []
    return "  ".join(parts)


def _object(retry: WaitingRetry) -> dict[str, Any]:
    shard, lane, entry = retry.place
    return {
        "id": retry.id,
        "topic": retry.topic,
        "next_at": iso(retry.next_at),
        "deliveries": retry.deliveries,
        "error": retry.error or None,
        "attempts": attempt_objects(retry.attempts),
        **body_object(retry),
        "tags": retry.tags,
        "keys": retry.keys,
        "properties": retry.properties,
        "priority": retry.priority,
        "expires_at": iso(retry.expires_at),
        "born_at": iso(retry.born_at),
        "shard": shard,
        "lane": lane,
        "entry": entry,
    }
