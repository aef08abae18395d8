"""The compiled reader and writer of ends work as the Python ones do, or leave the request to Python."""

import random
from typing import Any

import pytest
from duetime.v1 import message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.errors import InvalidArgument
from duetime_gateway.packing import ends
from duetime_gateway.rules import INT64_MAX
from duetime_gateway.transactions.columns import NOWHERE, EndColumns, EndResultColumns
from duetime_gateway.transactions.names import TransactionName, text_of
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled, damaged

twin = compiled("duetime_gateway.packing._ends")

INT64 = st.integers(0, INT64_MAX)
NAMES = st.builds(
    TransactionName, st.integers(0, (1 << 31) - 1), INT64, INT64, st.text("abcXYZ019-_.| ", min_size=1, max_size=40)
)
REQUESTS = st.builds(
    lambda group, given_up, named: pb.EndTransactionRequest(
        group=group,
        given_up=given_up,
        ends=[pb.TransactionEnd(transaction_id=text_of(name), decision=decision) for name, decision in named],
    ),
    st.sampled_from(["", "billing", "%x|y"]),
    st.booleans(),
    st.lists(st.tuples(NAMES, st.sampled_from([1, 2, 3])), max_size=5),
)


def same(data: bytes) -> Any:
    """The twin's result, checked against Python's; None: it left the request to Python."""
    found = twin.read(data)
    if found is not None:
        group, given_up, *columns = found
        assert ends.read_each(data) == (group, given_up, EndColumns(*columns))
    return found


@given(REQUESTS)
def test_plain_requests_are_read_alike(request: pb.EndTransactionRequest) -> None:
    assert same(request.SerializeToString()) is not None


@given(REQUESTS, st.randoms(use_true_random=False), st.integers(1, 4))
@example(pb.EndTransactionRequest(group="b"), random.Random(0), 1)
def test_damaged_requests_are_read_alike_or_left(
    request: pb.EndTransactionRequest, chance: random.Random, flips: int
) -> None:
    try:
        same(damaged(request.SerializeToString() or b"\x0a\0", chance, flips))
    except InvalidArgument:
        raise AssertionError("read, and no EndTransactionRequest") from None


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_do_no_harm(data: bytes) -> None:
    twin.read(data)


@pytest.mark.parametrize(
    "name",
    [
        *("", "1", "1.2.3", "1.2.3.", "a.2.3.x", "1.-2.3.x", "1.2.3x", "1..3.x", ". . . .", "12345678901.2.3.x"),
        *(f"1.{INT64_MAX + 1}.3.x", f"1.2.{'0' * 20}.x", "1.2.3.\N{SNOWMAN}"),
    ],
)
def test_names_that_are_not_plain_are_left(name: str) -> None:
    one = pb.TransactionEnd(transaction_id=name, decision=pb.DECISION_COMMIT)
    assert twin.read(pb.EndTransactionRequest(group="g", ends=[one]).SerializeToString()) is None


@pytest.mark.parametrize("decision", [-1, 0, 4])
def test_invalid_decisions_are_left_out(decision: int) -> None:
    one = pb.TransactionEnd(transaction_id="1.2.3.x", decision=decision)  # type: ignore[arg-type]
    assert twin.read(pb.EndTransactionRequest(group="g", ends=[one]).SerializeToString()) is None


RESULTS = st.builds(
    lambda state, text: pb.EndTransactionResult(state=state, fault=message_pb2.Fault(message=text)),
    st.integers(0, 4),
    st.text(max_size=300),
)
ROWS = st.tuples(
    *(st.integers(0, 4), st.text(max_size=200), st.integers(0, (1 << 31) - 1), st.just(NOWHERE) | INT64),
    *(st.integers(0, (1 << 31) - 1), st.text(max_size=300), st.none() | RESULTS),
)


@given(st.lists(ROWS, max_size=5))
def test_answers_are_written_alike(rows: list[tuple[Any, ...]]) -> None:
    states, topics, queues, offsets, shards, ids, others = ([row[column] for row in rows] for column in range(7))
    ended = EndResultColumns(
        states, topics, queues, offsets, {n: one for n, one in enumerate(others) if one is not None}
    )
    asked = EndColumns(shards, [0] * len(rows), [0] * len(rows), ids, [1] * len(rows))
    written, expected = ends.write(asked, ended), ends.write_each(asked, ended)
    assert pb.EndTransactionResponse.FromString(written) == pb.EndTransactionResponse.FromString(expected)


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="lengths"):
        twin.write([1], [], [1], [1], [1], ["x"], {})
