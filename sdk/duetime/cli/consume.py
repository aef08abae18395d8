"""`duetime consume`: runs a command for each message of a topic, or prints the messages, for a group."""

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Annotated, ClassVar, cast

import typer
from duetime_format.printing import echo

from duetime import deadlines
from duetime.cli.messages import message_line, message_object
from duetime.cli.options import FilterOptions, Json, Server, grouped
from duetime.cli.output import LogFormatter, iso, on_one_line, print_json
from duetime.client.consuming.consumer import Consumer
from duetime.client.consuming.failing import Reject, Retry
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.errors import Damaged

# sysexits.h: EX_TEMPFAIL.
RETRY_CODE = 75
# Characters of a command's standard error kept for the dead letter: they fit there beside the exit code.
STDERR_CHARS_KEPT = 3_500
STDERR = 2
# Silence of standard error after a command's end, and the number of extensions while it is not silent.
QUIET_S = 0.1
LEFT_CHUNKS_MAX = 20
# Time between SIGTERM and SIGKILL for commands that still run after the drain.
KILL_AFTER_S = 0.5

Run = Callable[[LeasedMessage], Awaitable[None]]
_LiteTopics = Annotated[
    list[str] | None,
    typer.Option("--lite-topic", metavar="NAME", help="Only messages of this lite topic, in order; may be repeated."),
]


class ExitCode(Exception):
    """A command failed: its exit code, and the last line of its standard error. A note has the end of that output."""


@dataclass
class HandlerOptions(FilterOptions):
    """The arguments of a consumer's handler."""

    lite_topics: _LiteTopics = None
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of commands at once.")] = 1
    lease: Annotated[str, typer.Option(metavar="LENGTH", help="The lease; renewed while a command runs.")] = "60s"
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of deliveries. Default: the group's.")
    ] = None
    backoff: Annotated[
        str | None,
        typer.Option("--backoff", "--retry", metavar="BACKOFF", help="exponential:1s..10m, 1s,5s,30s or levels."),
    ] = None


@dataclass
class CommandOptions:
    """The ends of commands and of the consumer."""

    reject_code: Annotated[
        int | None,
        typer.Option(min=1, max=255, metavar="CODE", help="Exit code that makes a message a dead letter at once."),
    ] = None
    timeout: Annotated[str | None, typer.Option(metavar="LENGTH", help="Commands that run longer fail.")] = None
    drain: Annotated[str, typer.Option(metavar="LENGTH", help="Time for running commands to finish on stop.")] = "30s"
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N commands were started.")] = None


@grouped
def consume(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    group: Annotated[str, typer.Option(metavar="GROUP", help="Created if it does not exist.")],
    command: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="A shell command, run once for each message.")
    ] = None,
    handling: HandlerOptions,
    ends: CommandOptions,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Run a command for each message of a topic.

    The command gets the body on standard input. Its environment has DUETIME_ID, DUETIME_TOPIC, DUETIME_GROUP,
    DUETIME_ATTEMPT, DUETIME_TAGS, DUETIME_KEYS, DUETIME_PROPERTIES (JSON), DUETIME_QUEUE, DUETIME_OFFSET and
    DUETIME_DUE_AT. Exit code 0: done. 75: retry later, nothing is logged. Any other: retried by the policy; the dead
    letter keeps the last line of standard error as its error, and the end of the output. Without --exec, printed
    messages are acknowledged.

    \b
    Examples:
      duetime consume orders --group billing --exec './settle.sh'
      duetime consume orders --group billing --exec 'curl -fsS --data-binary @- http://localhost/orders' --concurrency 8
      duetime consume orders --group billing --max-attempts 5 --backoff 1s,5s,30s --exec './settle.sh'
      duetime consume orders --group audit --json | jq .body
    """
    _check_program(command or "")
    _log_plainly()
    if sys.stderr.isatty() and not as_json:
        echo(f"duetime: waiting for messages of {topic}, group {group}; Ctrl-C ends", err=True)
    consumer = Consumer(server, group=group, drain=ends.drain)
    run = _printer(as_json, consumer.stop) if command is None else _runner(command, group, ends.reject_code)
    run = run if ends.count is None else _at_most(ends.count, run, consumer.stop)
    handling.lite_topics = handling.lite_topics or None
    consumer.handler(topic, timeout=ends.timeout, **asdict(handling))(run)
    consumer.run()


def _at_most(count: int, run: Run, stop: Callable[[], None]) -> Run:
    """Stops the consumer with the last message; further messages of its batch are released."""
    left = count

    async def handle(message: LeasedMessage) -> None:
        nonlocal left
        left -= 1
        if not left:
            stop()
        await run(message)

    return handle


def _printer(as_json: bool, stop: Callable[[], None]) -> Run:
    async def run(message: LeasedMessage) -> None:
        try:
            if as_json:
                print_json(message_object(message))
            else:
                echo(message_line(message))
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the output pipe. Python's buffered output needs a target.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            stop()
            raise Retry(after="0s") from None

    return run


def _runner(command: str, group: str, reject_code: int | None) -> Run:
    async def run(message: LeasedMessage) -> None:
        try:
            body = message.body
        except Damaged as damaged:
            raise Reject from damaged
        code, errors = await _run_command(command, body, _environment(message, group))
        if code == 0:
            return
        ended = f"exit code {code}" if code > 0 else f"ended by {_signal(-code)}"
        last_line = (on_one_line(line.encode("utf-8", "backslashreplace")) for line in errors.splitlines()[-1:])
        error = ExitCode(": ".join([ended, *last_line]))
        if errors:
            error.add_note(errors)
        if code == reject_code:
            raise Reject from error
        if code == RETRY_CODE:
            raise Retry from error
        raise error

    return run


def _signal(number: int) -> str:
    """SIGKILL for 9; real-time signals have no names."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


async def _run_command(command: str, body: bytes, environment: dict[str, str]) -> tuple[int, str]:
    """Runs a command and forwards its standard error; returns the exit code and the end of standard error."""
    _, running = await asyncio.get_running_loop().subprocess_shell(
        _CommandProcess,
        command,
        stdout=None,
        env=os.environ | environment,
        # Ctrl-C at a terminal must reach only this process, which gives the command time to end.
        start_new_session=True,
    )
    try:
        return await running.ended(body)
    except asyncio.CancelledError:
        await running.end()
        raise


class _CommandProcess(asyncio.SubprocessProtocol):
    """A running command. It is done when its own process ends, even if its streams are still open.

    `Process.wait` would also wait for the streams, which background processes of the command keep open. Their standard
    error is forwarded as long as they live.
    """

    # Commands kept alive until their streams end.
    _open: ClassVar[set[asyncio.BaseTransport]] = set()

    def __init__(self) -> None:
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._kept: deque[str] = deque()
        self._chunk_count = 0
        self._transport: asyncio.SubprocessTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self._transport)

    def process_exited(self) -> None:
        self._exited.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDERR:
            self._silent.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._chunk_count += 1
        text = data.decode("utf-8", "backslashreplace")
        sys.stderr.write(text)
        sys.stderr.flush()
        self._kept.append(text)
        while len(self._kept) > 1 and sum(map(len, self._kept)) - len(self._kept[0]) >= STDERR_CHARS_KEPT:
            self._kept.popleft()

    async def ended(self, body: bytes) -> tuple[int, str]:
        """Writes the body, which the command may ignore; returns when the command has ended."""
        stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        stdin.write(body)
        stdin.close()
        await self._exited.wait()
        if stdin.get_write_buffer_size():
            # The command does not read the rest of the body.
            stdin.abort()
        # The rest of standard error: until its end, or until it is silent briefly.
        for _ in range(LEFT_CHUNKS_MAX):
            read = self._chunk_count
            with suppress(TimeoutError):
                async with deadlines.within(QUIET_S):
                    await self._silent.wait()
            if self._silent.is_set() or self._chunk_count == read:
                break
        code = self._transport.get_returncode()
        assert code is not None
        return code, "".join(self._kept).rstrip()[-STDERR_CHARS_KEPT:]

    async def end(self) -> None:
        """Ends the command and all its processes; on Windows, the command only."""
        if self._exited.is_set():
            return
        if not hasattr(os, "killpg"):
            self._transport.kill()
            await self._exited.wait()
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), number)
            with suppress(TimeoutError):
                async with deadlines.within(KILL_AFTER_S):
                    await self._exited.wait()
                return


def _check_program(command: str) -> None:
    """Looks up the first word of a command if it is plain: a path, or a name for the shell.

    Raises:
        typer.BadParameter: the path is no executable file, or no program, builtin or keyword has this name.
    """
    try:
        word = next(iter(shlex.split(command)), "")
    except ValueError:
        return  # the shell reports the open quote
    if not re.fullmatch(r"[\w./+@%:-]+", word) or not hasattr(os, "fork"):
        return
    if "/" in word:
        # Some shells take any file for a command.
        is_known = shutil.which(word) is not None
    else:
        asked = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
        is_known = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    if not is_known:
        raise typer.BadParameter(f"{word}: no such program, or it can't be executed", param_hint="--exec")


def _environment(message: LeasedMessage, group: str) -> dict[str, str]:
    fields = {
        "ID": message.id,
        "TOPIC": message.topic,
        "GROUP": group,
        "ATTEMPT": str(message.attempt),
        "TAGS": message.tags,
        "KEYS": " ".join(message.keys),
        "PROPERTIES": json.dumps(message.properties, ensure_ascii=False),
        "QUEUE": str(message.queue),
        "OFFSET": str(message.offset),
        "DUE_AT": iso(message.due_at) or "",
    }
    # Environment variables can't contain zero bytes.
    return {f"DUETIME_{name}": value.replace("\0", "") for name, value in fields.items()}


class _PlainFormatter(LogFormatter):
    """One line per record, without traces: a failed command's standard error was printed already."""

    def formatException(  # noqa: N802  logging's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return ""


def _log_plainly() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("duetime: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
