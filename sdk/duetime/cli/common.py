"""Options shared by commands, added to all of them in one place.

-o, --output    for commands with --json
--watch, --wide for commands that only read (options.watched)
--context       for commands with --server
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Annotated, Any

import typer
from duetime_format.lengths import parse_ms
from duetime_format.printing import echo

from duetime.cli import contexts
from duetime.cli.options import WATCHED, interval_s
from duetime.cli.output import STYLE, Form, Style, clear_screen, local, moment_or_none, now_ms, print_error
from duetime.client.errors import DueTimeError
from duetime.client.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from duetime.client.trust import CA_VARIABLE

WATCH = "2s"
_WATCH = "--watch"
_FORMS = "|".join(Form)
_EQUIPPED = "duetime_equipped"
# The option that named a server before a group's command; empty: none.
_NAMED: ContextVar[str] = ContextVar("named", default="")


def equip(command: Any) -> Any:
    """Adds the options to a command, and to its subcommands. Idempotent; returns the command."""
    if command is None or hasattr(command, _EQUIPPED):
        return command
    setattr(command, _EQUIPPED, True)
    names = {one.name for one in command.params}
    wanted = ["output"] if "as_json" in names else []
    wanted += ["watch", "wide"] if getattr(command.callback, WATCHED, False) else []
    wanted += ["context_name"] if "server" in names else []
    if wanted:
        command.params = [*command.params, *(_options()[name] for name in wanted)]
        command.invoke = partial(_invoke, command.invoke)
    for child in getattr(command, "commands", {}).values():
        equip(child)
    return command


def completed(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a length after each --watch."""
    made: list[str] = []
    for number, one in enumerate(arguments):
        if one == "--":
            return [*made, *arguments[number:]]
        after = arguments[number + 1] if number + 1 < len(arguments) else ""
        made.append(f"{_WATCH}={WATCH}" if one == _WATCH and not _is_length(after) else one)
    return made


def _is_length(text: str) -> bool:
    """Whether the text is a length, or a number without a unit, which is rejected."""
    return parse_ms(text) is not None or (text.isascii() and text.replace(".", "", 1).isdigit())


@cache
def _options() -> Mapping[str, Any]:
    """The options by the names of their values."""
    template = typer.Typer(add_completion=False)

    @template.command()
    def _declared(
        output: Annotated[
            str | None,
            typer.Option(
                "--output", "-o", metavar=_FORMS, help="The output format; json and yaml: an object per entry."
            ),
        ] = None,
        watch: Annotated[
            str | None,
            typer.Option(_WATCH, metavar="[LENGTH]", help="Repeat every 2s, or LENGTH, until Ctrl-C."),
        ] = None,
        wide: Annotated[bool, typer.Option("--wide", help="Show all columns, even on a narrow terminal.")] = False,
        context_name: Annotated[
            str | None, typer.Option("--context", metavar="NAME", help="The server and token of `duetime context`.")
        ] = None,
    ) -> None: ...

    return {one.name: one for one in typer.main.get_command(template).params}


def _invoke(run: Callable[[Any], Any], context: Any) -> Any:
    """Runs a command with these options."""
    output, watch, wide, name = (context.params.pop(one, None) for one in ("output", "watch", "wide", "context_name"))
    with _styled(context.params, output, wide), _aimed(context, name):
        if watch is None:
            return run(context)
        if _has_command(context):
            raise typer.BadParameter("give --watch after the command")
        return _watch(lambda: run(context), interval_s(_WATCH, watch))


@contextmanager
def _styled(params: dict[str, Any], output: str | None, wide: bool | None) -> Iterator[None]:
    before = STYLE.get()
    try:
        form = Form(output) if output else Form.JSON if params.get("as_json") else before.form
    except ValueError:
        raise typer.BadParameter(f"--output {output!r} is not {_FORMS}") from None
    if params.get("as_json") and form is not Form.JSON:
        raise typer.BadParameter(f"give either --json or --output {form}")
    if "as_json" in params:
        params["as_json"] = form is not Form.TABLE
    token = STYLE.set(Style(form, wide or before.wide))
    try:
        yield
    finally:
        STYLE.reset(token)


@contextmanager
def _aimed(context: Any, name: str | None) -> Iterator[None]:
    """Sets the server and its token: an option takes precedence over the environment, and the environment over the
    current context. The token of one server is never sent to another."""
    if "server" not in context.params:
        yield
        return
    source = context.get_parameter_source("server")
    is_option = source is not None and source.name == "COMMANDLINE"
    options = {_NAMED.get(), "--server" if is_option else "", "--context" if name else ""} - {""}
    if len(options) > 1:
        raise typer.BadParameter("give either --server or --context")
    named = _NAMED.set("".join(options))
    try:
        # The group's command may name another server: until then no token is known to belong.
        if name or not (context.params["server"] or options or _has_command(context)):
            with _in_context(context.params, name):
                yield
        else:
            yield
    finally:
        _NAMED.reset(named)


def _has_command(context: Any) -> bool:
    """Whether it is a group's option, and a command follows."""
    return bool(getattr(context, "_protected_args", None) or context.args)


@contextmanager
def _in_context(params: dict[str, Any], name: str | None) -> Iterator[None]:
    """Applies a context; None: the current one, if any."""
    known = contexts.read()
    chosen = known.get(name) if name else known.by_name.get(known.in_use)
    if chosen is None:
        yield
        return
    params["server"] = chosen.server
    tokens = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
    before = dict(os.environ)
    shown = chosen.environment
    if chosen.tls_ca and (name or not os.environ.get(CA_VARIABLE)):
        os.environ[CA_VARIABLE] = chosen.tls_ca
    if not any(os.environ.get(one) for one in tokens) or (name and any(one in shown for one in tokens)):
        for one in tokens:
            os.environ.pop(one, None)
        os.environ.update(shown)
    try:
        yield
    finally:
        for one in {*shown, *tokens, CA_VARIABLE}:
            os.environ.pop(one, None)
            if one in before:
                os.environ[one] = before[one]


def _watch(run: Callable[[], Any], every_s: float) -> None:
    """Repeats the command until Ctrl-C. A temporarily unavailable server does not end it."""
    on_screen = sys.stdout.isatty() and STYLE.get().form is Form.TABLE
    wait = threading.Event()
    with _until_interrupted():
        while True:
            if on_screen:
                clear_screen()
                echo(f"every {every_s:g} s, at {local(moment_or_none(now_ms()))}; Ctrl-C ends")
            try:
                run()
            except BrokenPipeError:
                raise
            except (DueTimeError, OSError) as error:
                print_error(str(error))
            except typer.Exit:
                pass  # some shards did not answer, and an error line says so
            sys.stdout.flush()
            wait.wait(every_s)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        echo()
