"""`manage.py duetime_relay`: moves the messages of the outbox to the server."""

from typing import Any

from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from duetime.django.commands import DueTimeCommand
from duetime.django.outbox.databases import database_url


class RelayCommand(DueTimeCommand):
    """`duetime outbox relay` for a database of the project, with its options."""

    help = "Move the messages of the outbox to the server until SIGTERM or Ctrl-C: `duetime outbox relay`."
    words = ("outbox", "relay")
    replaced = frozenset({"database", "table"})

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the database's alias in place of its URL."""
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            help=f"The alias of the database. Default: {DEFAULT_DB_ALIAS}.",
        )
        super().add_arguments(parser)

    def arguments(self, options: dict[str, Any]) -> list[str]:
        return [f"--database={database_url(options['database'])}"]


Command = RelayCommand
