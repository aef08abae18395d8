"""Answers of several shards to one call. Pure."""

from collections.abc import Sequence
from typing import TypeVar

Answer = TypeVar("Answer")


def raise_first(answers: Sequence[Answer | BaseException]) -> list[Answer]:
    """Returns the answers, or raises the first exception among them."""
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found
