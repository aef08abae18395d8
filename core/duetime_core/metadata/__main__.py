"""`python -m duetime_core.metadata upgrade|current --database-url URL`: the schema, by hand or before a start."""

import argparse
import sys

from duetime_core.errors import StartupError
from duetime_core.metadata.schema import current_revision, head_revision, upgrade


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m duetime_core.metadata", description="DueTime's metadata schema")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, purpose in (
        ("upgrade", "bring the schema to this version; may be repeated, and run by several at once"),
        ("current", "show the database's schema version and this code's"),
    ):
        command = commands.add_parser(name, help=purpose, description=purpose)
        command.add_argument("--database-url", required=True, help="such as sqlite:////var/lib/duetime/meta.db")
    options = parser.parse_args(arguments)
    try:
        if options.command == "upgrade":
            sys.stdout.write(f"{upgrade(options.database_url)}\n")
        else:
            current = current_revision(options.database_url) or "none"
            sys.stdout.write(f"{current} (this version of DueTime: {head_revision()})\n")
    except StartupError as error:
        sys.stderr.write(f"{error.text}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
