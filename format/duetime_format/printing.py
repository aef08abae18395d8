"""Lines for terminals and pipes."""

import sys

from duetime_format.texts import visible


def echo(text: str = "", *, err: bool = False, flush: bool = False) -> None:
    """Prints a line or several on standard output, or on standard error. All texts for terminals pass here: control
    characters of a sender, which a terminal would obey, are escaped."""
    print(visible(text.replace("\r\n", "\n")), file=sys.stderr if err else sys.stdout, flush=flush or err)
