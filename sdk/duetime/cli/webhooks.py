"""`duetime webhooks`: post the messages of a topic to a URL."""

import sys
import time
from typing import Annotated, Any

import typer
from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, Yes, length, show_help, watched
from duetime.cli.output import iso, local, moment_or_none, now_ms, print_json, print_table
from duetime.cli.output import length as length_text
from duetime.v1 import webhooks_pb2 as pb

webhooks = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="""Post the messages of a topic to a URL.

Requests are signed by Standard Webhooks. A worker sends them: `duetime up --webhooks` starts one, and
`python -m duetime_webhooks` is one. Failed requests are retried by the policy of the group, and then are dead letters.

\b
Examples:
  duetime webhooks create paid --topic orders --group paid-hook --url https://shop.example/hook
  duetime webhooks test paid
  duetime webhooks list
  duetime webhooks rotate paid --old-ends 1d
""",
)
webhooks.callback()(show_help)

# A worker that has not followed the webhooks for longer than this has ended: it reports every 10 s.
SEEN_MS_MAX = 30_000
TEST_POLL_S = 0.3
_NO_WORKER = "no worker runs; `duetime up --webhooks` starts one"

_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Url = Annotated[str, typer.Option("--url", metavar="URL", help="The receiver: https://HOST/PATH.")]
_Concurrency = Annotated[
    int | None, typer.Option(min=1, max=256, metavar="N", help="Requests of one worker at once. Default: 16.")
]
_Timeout = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="Longest time of a request, 1s to 1m. Default: 15s.")
]


@webhooks.command()
def create(
    *,
    name: _Name,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic, which exists.")],
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="The group as which it receives.")],
    url: _Url,
    concurrency: _Concurrency = None,
    timeout: _Timeout = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a webhook, and print its signing secret once.

    A group that does not exist begins with the earliest stored message. Create it first for another start or for its
    retry policy: `duetime groups create`.

    \b
    Examples:
      duetime webhooks create paid --topic orders --group paid-hook --url https://shop.example/hook
      duetime webhooks create audit --topic events --group audit-hook --url https://log.example/ --concurrency 64
    """
    timeout_ms = 0 if timeout is None else length("--timeout", timeout)
    webhook = pb.Webhook(
        name=name, topic=topic, group=group, url=url, concurrency=concurrency or 0, timeout_ms=timeout_ms
    )
    _print_secret(call(server, "CreateWebhook", pb.CreateWebhookRequest(webhook=webhook)), as_json)


@webhooks.command("list")
@watched
def list_webhooks(server: Server = None, as_json: Json = False) -> None:
    """List the webhooks, with their state and last delivery.

    \b
    Examples:
      duetime webhooks list
      duetime webhooks list --json | jq -r 'select(.paused) | .name'
    """
    found = call(server, "ListWebhooks", pb.ListWebhooksRequest()).webhooks
    if as_json:
        for one in found:
            print_json(_object(one))
    elif found:
        rows = [(one.name, one.topic, one.group, _state(one), _when(one.delivered_at_ms), one.url) for one in found]
        print_table(["name", "topic", "group", "state", "delivered?2", "url?1"], rows)
    else:
        echo("no webhooks yet; `duetime webhooks create` creates one")


@webhooks.command()
@watched
def show(name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Show a webhook, its last delivery, failure and test.

    \b
    Examples:
      duetime webhooks show paid
    """
    (found,) = call(server, "ListWebhooks", pb.ListWebhooksRequest(name=name)).webhooks
    _print(found, as_json)


@webhooks.command()
def update(
    *,
    name: _Name,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The receiver: https://HOST/PATH.")] = None,
    concurrency: _Concurrency = None,
    timeout: _Timeout = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Change the URL or the limits of a webhook.

    Messages that wait, and later attempts of failed ones, go to the new URL.

    \b
    Examples:
      duetime webhooks update paid --url https://new.example/hook
      duetime webhooks update paid --concurrency 4 --timeout 30s
    """
    if url is None and concurrency is None and timeout is None:
        raise typer.BadParameter("give at least one of --url, --concurrency and --timeout")
    timeout_ms = None if timeout is None else length("--timeout", timeout)
    request = pb.UpdateWebhookRequest(name=name, url=url, concurrency=concurrency, timeout_ms=timeout_ms)
    _print(call(server, "UpdateWebhook", request), as_json)


@webhooks.command()
def pause(name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Stop deliveries; messages wait in the topic.

    \b
    Examples:
      duetime webhooks pause paid
    """
    _print(call(server, "PauseWebhook", pb.WebhookRef(name=name)), as_json)


@webhooks.command()
def resume(name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Continue with the messages that wait.

    \b
    Examples:
      duetime webhooks resume paid
    """
    _print(call(server, "ResumeWebhook", pb.WebhookRef(name=name)), as_json)


@webhooks.command()
def rotate(
    name: _Name,
    old_ends: Annotated[
        str | None,
        typer.Option("--old-ends", metavar="LENGTH", help="The old secret signs too for this long, up to 30d."),
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Replace the signing secret, and print the new one once.

    With --old-ends requests have two signatures, so that the receiver can change its secret meanwhile.

    \b
    Examples:
      duetime webhooks rotate paid --old-ends 1d
      duetime webhooks rotate paid                 at once: the old secret is known to others
    """
    old_valid_ms = 0 if old_ends is None else length("--old-ends", old_ends)
    request = pb.RotateWebhookSecretRequest(name=name, old_valid_ms=old_valid_ms)
    _print_secret(call(server, "RotateWebhookSecret", request), as_json)


@webhooks.command("test")
def send_test(
    name: _Name,
    wait: Annotated[str, typer.Option("--wait", metavar="LENGTH", help="Longest wait for the result.")] = "30s",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Send a signed test message, and print the response.

    The message is in no topic. A paused webhook can be tested too. The exit code is 1 if it was not delivered.

    \b
    Examples:
      duetime webhooks test paid
    """
    until_s = time.monotonic() + length("--wait", wait) / 1_000
    found = call(server, "TestWebhook", pb.WebhookRef(name=name))
    number = found.test.number
    while not (found.test.done and found.test.number >= number):
        if time.monotonic() > until_s:
            why = "no result yet" if _is_served(found) else _NO_WORKER
            echo(f"duetime: webhook {name} was not tested within {wait}: {why}", err=True)
            raise typer.Exit(1)
        time.sleep(TEST_POLL_S)
        (found,) = call(server, "ListWebhooks", pb.ListWebhooksRequest(name=name)).webhooks
    result = found.test
    if as_json:
        print_json({"name": name, **_test(result)})
    else:
        echo(f"{'delivered' if not result.error else 'failed'}: {_test_text(result)}")
    if result.error:
        raise typer.Exit(1)


@webhooks.command()
def delete(name: _Name, yes: Yes = False, server: Server = None) -> None:
    """Delete a webhook; its topic and group are unchanged.

    \b
    Examples:
      duetime webhooks delete paid --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("give --yes: the webhook and its secret are deleted for good")
        typer.confirm(f"Delete webhook {name} and its secret?", abort=True)
    call(server, "DeleteWebhook", pb.WebhookRef(name=name))
    echo(f"webhook {name} is deleted")


def _print_secret(answer: pb.WebhookSecret, as_json: bool) -> None:
    if as_json:
        print_json({**_object(answer.webhook), "secret": answer.secret})
        return
    echo(answer.secret)
    echo(f"duetime: the secret of webhook {answer.webhook.name} is shown only now", err=True)
    if not _is_served(answer.webhook) and now_ms() - answer.webhook.created_at_ms > SEEN_MS_MAX:
        echo(f"duetime: {_NO_WORKER}", err=True)


def _print(found: pb.Webhook, as_json: bool) -> None:
    if as_json:
        print_json(_object(found))
        return
    lines = [
        f"name         {found.name}",
        f"topic        {found.topic}",
        f"group        {found.group}",
        f"url          {printable(found.url)}",
        f"state        {_state(found)}",
        f"limits       {found.concurrency} at once, {length_text(found.timeout_ms)} each",
        f"created      {_when(found.created_at_ms)}",
        f"delivered    {_when(found.delivered_at_ms)}",
    ]
    if found.failed_at_ms:
        lines.append(f"failed       {_when(found.failed_at_ms)}: {printable(found.failure)}")
    if found.old_secret_ends_at_ms > now_ms():
        lines.append(f"old secret   until {_when(found.old_secret_ends_at_ms)}")
    if found.HasField("test"):
        lines.append(f"test         {_test_text(found.test)}")
    echo("\n".join(lines))


def _state(found: pb.Webhook) -> str:
    if found.paused:
        return f"paused: {printable(found.pause_reason)}" if found.pause_reason else "paused"
    return "active" if _is_served(found) else "no worker"


def _is_served(found: pb.Webhook) -> bool:
    """Whether a worker has followed the webhooks lately. Clocks of machines may differ by some seconds."""
    return found.worker_seen_at_ms > now_ms() - SEEN_MS_MAX


def _test_text(test: pb.WebhookTest) -> str:
    if not test.done:
        return "waits for a worker"
    return f"{printable(test.error) or test.status} in {test.took_ms} ms"


def _test(test: pb.WebhookTest) -> dict[str, Any]:
    return {
        "number": test.number,
        "done": test.done,
        "status": test.status or None,
        "error": test.error or None,
        "took_ms": test.took_ms if test.done else None,
    }


def _when(at_ms: int) -> str:
    found = moment_or_none(at_ms)
    return "-" if found is None else local(found)


def _iso(at_ms: int) -> str | None:
    return iso(moment_or_none(at_ms))


def _object(found: pb.Webhook) -> dict[str, Any]:
    return {
        "name": found.name,
        "topic": found.topic,
        "group": found.group,
        "url": found.url,
        "concurrency": found.concurrency,
        "timeout_ms": found.timeout_ms,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "has_worker": _is_served(found),
        "created_at": _iso(found.created_at_ms),
        "old_secret_ends_at": _iso(found.old_secret_ends_at_ms),
        "delivered_at": _iso(found.delivered_at_ms),
        "failed_at": _iso(found.failed_at_ms),
        "failure": found.failure or None,
        "test": _test(found.test) if found.HasField("test") else None,
    }
