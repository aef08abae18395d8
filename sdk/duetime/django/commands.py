"""Commands of `duetime` as commands of `manage.py`, with the same options."""

import os
import sys
from typing import Any

import typer
from django.core.management.base import BaseCommand, CommandParser

from duetime.cli.app import app, run


class DueTimeCommand(BaseCommand):
    """A command of `manage.py` that runs a command of `duetime`; `words` are its name, and `replaced` are options that
    it has no use for."""

    words: tuple[str, ...]
    replaced: frozenset[str] = frozenset()

    def arguments(self, options: dict[str, Any]) -> list[str]:
        """Its arguments. `options`: those of the user."""
        raise NotImplementedError

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the options of the command."""
        for option in self._options():
            kind: dict[str, Any] = {"action": "store_true"} if option.is_flag else {"metavar": option.metavar}
            kind |= {"action": "append"} if option.multiple else {}
            default = "" if option.is_flag or option.default is None else f" Default: {option.default}."
            parser.add_argument(*option.opts, dest=option.name, help=f"{option.help}{default}", **kind)

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the command. Raises: SystemExit: its exit code is not 0."""
        arguments = [*self.words, *self.arguments(options)]
        for option in self._options():
            value = options[option.name]
            if option.is_flag:
                arguments += [_long(option)] if value else []
            else:
                values = value if isinstance(value, list) else [] if value is None else [value]
                arguments += [f"{_long(option)}={one}" for one in values]
        code = run(arguments)
        if code:
            sys.exit(code)

    def _options(self) -> list[Any]:
        command: Any = typer.main.get_command(app)
        for word in self.words:
            command = command.get_command(None, word)
        options = [one for one in command.params if one.param_type_name == "option"]
        return [one for one in options if one.name not in self.replaced]


def _long(option: Any) -> str:
    return str(max(option.opts, key=len))


def share_path() -> None:
    """Lets child processes find the project's modules: `manage.py` is run from any directory."""
    # Entries before Python's own: the directory of manage.py, --pythonpath, PYTHONPATH.
    library = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    names = [os.path.basename(path) for path in sys.path]
    own = sys.path[: names.index(library)] if library in names else []
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in own)
