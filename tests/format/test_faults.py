"""Faults that pydantic finds are told in the project's words."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from duetime_format.faults import worded
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError


def refused(value: int) -> int:
    raise ValueError("is odd")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (int, "x", "is not a whole number"),
        (int, 1.5, "is not a whole number"),
        (float, "x", "is not a number"),
        (bool, "x", "is neither true nor false"),
        (str, 5, "is not text"),
        (Path, 5, "is not a path"),
        (list[int], 5, "is not a list"),
        (dict[str, int], 5, "is not an object"),
        (bytes, 5, "is not valid"),
        (Literal["a", "b"], "c", "is not 'a' or 'b'"),
        (Annotated[int, Field(ge=0)], -1, "is below 0"),
        (Annotated[int, Field(gt=0)], 0, "is not above 0"),
        (Annotated[int, Field(le=5)], 6, "is above 5"),
        (Annotated[int, Field(lt=5)], 5, "is not below 5"),
        (Annotated[str, Field(min_length=1)], "", "has fewer than 1 characters"),
        (Annotated[str, Field(max_length=1)], "ab", "has more than 1 characters"),
        (Annotated[list[int], Field(min_length=1)], [], "has fewer than 1 entries"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "has more than 1 entries"),
        (Annotated[int, AfterValidator(refused)], 1, "is odd"),
    ],
)
def test_fault_is_a_clause_about_the_value(kind: Any, value: object, text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    assert worded(raised.value.errors()[0]) == text
