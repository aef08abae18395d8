"""Contexts: a user's servers by name, with their tokens and CAs.

They are stored in `contexts.json`, in DUETIME_CONFIG or the platform's folder for settings. The file may contain
tokens, so only the user can read it (0600).
"""

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import typer

from duetime.cli.files import write_private
from duetime.client.errors import DueTimeError, InvalidArgument
from duetime.client.tokens import IN_PLAIN_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

FOLDER_VARIABLE = "DUETIME_CONFIG"
FILE_NAME = "contexts.json"
NAME_RULE = "1 to 64 characters of [a-zA-Z0-9_.-]"
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True)
class ServerContext:
    """A server, its token (or the file with it), and the CA of its certificate."""

    server: str
    token: str = ""
    token_file: str = ""
    token_in_plain: bool = False
    # A file; empty: no TLS.
    tls_ca: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The client's environment variables for the token and the CA."""
        named = {TOKEN_VARIABLE: self.token, TOKEN_FILE_VARIABLE: self.token_file}
        return {name: text for name, text in named.items() if text} | (
            {IN_PLAIN_VARIABLE: "1"} if self.token_in_plain else {}
        )


@dataclass
class Contexts:
    """All contexts by name, and the current one; empty: none."""

    in_use: str = ""
    by_name: dict[str, ServerContext] = field(default_factory=dict)

    def get(self, name: str) -> ServerContext:
        """Raises: InvalidArgument: there is no context of this name."""
        if name not in self.by_name:
            known = f"; there are {', '.join(sorted(self.by_name))}" if self.by_name else "; there is none yet"
            raise InvalidArgument.of("context", f"{name!r} does not exist{known}")
        return self.by_name[name]


def check_name(name: str) -> None:
    """Raises: BadParameter."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(f"{name!r} is not {NAME_RULE}")


def path() -> Path:
    """The path of the file, which may not exist."""
    return Path(os.environ.get(FOLDER_VARIABLE) or typer.get_app_dir("duetime")) / FILE_NAME


def read() -> Contexts:
    """Raises: DueTimeError: the file is not a valid file of contexts."""
    try:
        stored = json.loads(path().read_text())
    except FileNotFoundError:
        return Contexts()
    except ValueError as error:
        raise DueTimeError(f"{path()} is not a file of contexts: {error}", reason="CONTEXTS_UNREADABLE") from error
    known = {one.name for one in fields(ServerContext)}
    try:
        contexts = {
            name: ServerContext(**{key: value for key, value in one.items() if key in known})
            for name, one in stored["contexts"].items()
        }
        return Contexts(stored.get("in_use", ""), contexts)
    except (AttributeError, KeyError, TypeError) as error:
        raise DueTimeError(f"{path()} is not a file of contexts: {error!r}", reason="CONTEXTS_UNREADABLE") from error


def write(contexts: Contexts) -> None:
    """Replaces the file, whole or not at all."""
    stored = {"in_use": contexts.in_use, "contexts": {name: asdict(one) for name, one in contexts.by_name.items()}}
    write_private(path(), f"{json.dumps(stored, indent=2)}\n".encode())
