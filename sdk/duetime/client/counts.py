"""Numbers of things in arguments, such as `concurrency=32`."""

import operator
from typing import Any

from duetime.client.errors import InvalidArgument

# The highest number of a call that has no limit of its own.
COUNT_MAX = 2**31 - 1


def whole(field: str, value: Any, most: int, least: int = 1) -> int:
    """The value as an int.

    Raises:
        InvalidArgument: it is no whole number from `least` to `most`; names the argument and the range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument.of(field, f"{value!r} is not a whole number within {least} and {most}") from None
    if not least <= number <= most:
        raise InvalidArgument.of(field, f"{number} is not within {least} and {most}")
    return number
