"""Rounds of a model's points: the gate tries one that the seed chooses, the proof tries all points."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from tests.seeds import seed

T = TypeVar("T")
# A test that loops over `some` points has one of these as its parameter.
ONE_IN = [pytest.param(8, id="round"), pytest.param(1, id="all", marks=pytest.mark.proof)]


def some(points: Sequence[T], one_in: int) -> list[T]:
    """The first point, the last one, and one in `one_in` of all, in their order."""
    chosen = random.Random(seed()).sample(range(len(points)), -(-len(points) // one_in))
    return [points[index] for index in sorted({0, *chosen, len(points) - 1})]


def one_by_one(points: Sequence[Any], one_in: int = 8) -> list[Any]:
    """Parameters, a point each (a tuple has a value for each argument); those outside the round are proofs."""
    chosen = some(range(len(points)), one_in)
    return [
        pytest.param(
            *(point if isinstance(point, tuple) else (point,)), marks=[] if index in chosen else [pytest.mark.proof]
        )
        for index, point in enumerate(points)
    ]
