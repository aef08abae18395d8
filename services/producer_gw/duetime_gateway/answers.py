"""What several shards answered to one call. Pure."""

from collections.abc import Sequence
from typing import TypeVar

Answer = TypeVar("Answer")


def raise_first(answers: Sequence[Answer | BaseException]) -> list[Answer]:
    """The answers; if there are exceptions among them, the first is raised."""
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found
