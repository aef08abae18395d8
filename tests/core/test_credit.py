"""A reader's credit: the rest, the low mark, and refusals."""

import pytest
from duetime_core.errors import InvalidArgument
from duetime_core.limits.credit import Credit


def test_an_answer_may_use_up_more_than_is_left() -> None:
    credit = Credit(100)
    credit.give(10)
    credit.spend(25)
    assert credit.left == -15
    credit.give(115)
    assert credit.left == 100


def test_an_answer_is_not_made_small_by_the_rest_of_the_credit() -> None:
    credit = Credit(100)
    credit.give(40)
    assert credit.answer_bytes == 40
    credit.spend(30)
    assert credit.answer_bytes == 20
    credit.spend(10)
    assert credit.answer_bytes == 0


@pytest.mark.parametrize("size", [0, -1, 61])
def test_no_credit_and_more_than_the_limit_are_refused(size: int) -> None:
    credit = Credit(100)
    credit.give(40)
    with pytest.raises(InvalidArgument, match=f"credit_bytes: {size} plus the remaining 40 is not within 1 and 100"):
        credit.give(size)
    assert credit.left == 40


def test_credit_is_low_once_more_than_half_of_the_most_is_used_up() -> None:
    credit = Credit(100)
    credit.give(40)
    credit.give(40)
    assert not credit.is_low
    credit.spend(40)
    assert not credit.is_low
    credit.spend(1)
    assert credit.is_low
