"""The failed deliveries in a property of bounded size."""

import json

import pytest
from duetime_format.attempts import HISTORY_BYTES_MAX, AttemptFailure, AttemptHistory, decode, encode
from hypothesis import given
from hypothesis import strategies as st


def attempt(number: int, message: str = "m" * 500, trace: str = "t" * 2_000) -> AttemptFailure:
    return AttemptFailure(number, 1_700_000_000_000 + number, 1_700_000_000_500 + number, "ValueError", message, trace)


def fitted(history: AttemptHistory, room: int = HISTORY_BYTES_MAX) -> AttemptHistory:
    text = encode(history, room)
    assert text is not None
    return decode(text)


def test_encoded_form() -> None:
    history = AttemptHistory(
        (
            AttemptFailure(1, 5, 6, "TimeoutError", "no answer", "line 1\nline 2"),
            AttemptFailure(2, 7, 8, "LeaseExpired"),
        )
    )
    assert encode(history) == (
        '{"attempts":[[1,5,6,"TimeoutError","no answer","line 1\\nline 2"],[2,7,8,"LeaseExpired","",""]]}'
    )
    assert encode(AttemptHistory()) is None


def test_separators_of_properties_are_escaped() -> None:
    text = encode(AttemptHistory((attempt(1, "a\x01b\x02c\x00", "ü"),)))
    assert text is not None
    assert not {"\x00", "\x01", "\x02"} & set(text)
    assert decode(text).attempts[0].message == "a\x01b\x02c\x00"


def test_errors_are_cut_to_their_limits() -> None:
    one = AttemptFailure.of_error(1, 5, 6, "T" * 300, "m" * 2_000, "b" * 5_000 + "end")
    assert (len(one.type), len(one.message or ""), len(one.trace or "")) == (256, 1_024, 4_096)
    assert (one.trace or "").endswith("bend")


def test_traces_of_the_middle_go_first_the_oldest_before_others() -> None:
    found = fitted(AttemptHistory(tuple(attempt(number) for number in range(1, 10))))
    assert [one.number for one in found.attempts] == list(range(1, 10))
    assert [one.trace is None for one in found.attempts] == [False, *[True] * 4, *[False] * 4]
    assert all(one.message for one in found.attempts)
    text = encode(AttemptHistory(tuple(attempt(number) for number in range(1, 10))))
    assert text is not None
    assert json.loads(text)["shortened"] == 4


def test_then_messages_then_attempts_of_the_middle() -> None:
    found = fitted(AttemptHistory(tuple(attempt(number) for number in range(1, 40))))
    assert [one.trace for one in found.attempts[1:-1]] == [None] * 37
    assert found.attempts[1].message is None
    assert found.attempts[-2].message
    assert found.attempts[0].trace
    assert found.attempts[-1].trace
    found = fitted(AttemptHistory(tuple(attempt(number) for number in range(1, 1_001))))
    assert found.attempts[0].number == 1
    assert found.attempts[-1].number == 1_000
    assert found.left_out + len(found.attempts) == 1_000
    assert [one.number for one in found.attempts[1:]] == list(range(found.left_out + 2, 1_001))


def test_the_end_of_the_last_trace_stays_longest() -> None:
    history = AttemptHistory((attempt(1, "first"), attempt(2, "last", "x" * 3_000 + "the end")))
    found = fitted(history, 600)
    assert (found.attempts[0].trace, found.attempts[0].message) == (None, None)
    last = found.attempts[1]
    assert last.cut
    assert last.message == "last"
    assert last.trace is not None
    assert last.trace.endswith("the end")
    assert 100 < len(last.trace) < 600


def test_it_shrinks_to_a_count_and_then_to_nothing() -> None:
    history = AttemptHistory(tuple(attempt(number) for number in range(1, 6)))
    found = fitted(history, 70)
    assert found == AttemptHistory((), 5)
    assert found.last_number == 5
    assert encode(history, 10) is None
    assert encode(history, -5) is None


def test_abandonment_stays_reported() -> None:
    history = fitted(AttemptHistory(tuple(attempt(number) for number in range(1, 1_001))))
    again = fitted(history.with_attempts([attempt(1_001)]))
    assert again.attempts[-1].number == 1_001
    assert again.left_out + len(again.attempts) == 1_001


def test_attempt_numbers_continue_after_a_redrive() -> None:
    history = AttemptHistory().with_attempts([attempt(1), attempt(2)]).with_attempts([attempt(1), attempt(2)])
    assert [one.number for one in history.attempts] == [1, 2, 3, 4]
    # Earlier deliveries that nobody noted, as a broker's.
    assert AttemptHistory().with_attempts([attempt(5)]).attempts[0].number == 5


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", "null", '{"attempts":[[1]]}', '{"attempts":[["a",1,2,"",null,null]]}', '{"attempts":7}'],
)
def test_unreadable_history_is_marked(text: str) -> None:
    assert [one.type for one in decode(text).attempts] == ["HistoryUnreadable"]


texts = st.text(st.characters(codec="utf-8"), max_size=300)
attempts = st.builds(
    AttemptFailure,
    st.integers(1, 1_000),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    texts,
    texts,
    texts,
    st.booleans(),
)


@given(st.lists(attempts, max_size=60).map(lambda found: AttemptHistory(tuple(found))), st.integers(-1, 20_000))
def test_never_longer_than_its_room(history: AttemptHistory, room: int) -> None:
    text = encode(history, room)
    if text is not None:
        assert len(text.encode()) <= min(room, HISTORY_BYTES_MAX)
        found = decode(text)
        assert found.left_out + len(found.attempts) == len(history.attempts)
        assert "HistoryUnreadable" not in {one.type for one in found.attempts}
    else:
        assert not history.attempts or room < 100


@given(st.lists(attempts, max_size=3).map(lambda found: AttemptHistory(tuple(found))))
def test_fitting_history_is_kept_whole(history: AttemptHistory) -> None:
    text = encode(history)
    if text is not None and len(text.encode()) < HISTORY_BYTES_MAX // 2:
        assert decode(text) == history
