"""Messages as read, in Python and compiled: the same of every record, whole, hostile or damaged, and the same face."""

import copy
import importlib.util
import pickle
import random
import sys
import zlib
from collections.abc import Callable
from types import ModuleType

import pytest
from duetime.client import record as chosen
from duetime.client.consuming.leased import DeliveryAttempt, LeasedMessage
from duetime.client.consuming.leased import leased as leased_messages
from duetime_format import layout, record, view
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled, damaged

twin = compiled("duetime_format._view")

FIELDS = [name for name in vars(view.PythonView) if not name.startswith("_") and name != "text_of"]
OWN = "properties born_at stored_at due_at late_ms delay_level lane".split()
HOSTS = (record.host_bytes("127.0.0.1", 9800), record.host_bytes("2001:db8::1", 10911))
NAMES = (b"UNIQ_KEY", b"TAGS", b"KEYS", b"color", b"", b"TAG", b"XTAGS", b"DT_ENTRY")
VALUES = (
    *(b"", b"paid", b"a b", b"  a \t b ", "größe😀".encode(), b"\xff\xfe", b"\xed\xa0\x80", b"x\x01y", b"0" * 30),
    *(b"2:17:1700000000000", b"2:17:" + b"9" * 18, b"2:17:" + b"9" * 19, b"2:17:" + b"9" * 20, b"1:2", b"1:2:3:4"),
    *(
        b"1::3",
        b":",
        b"1:2:3:",
        b"0" * 12 + b"1:2:3",
        b"%018d:%018d:%018d" % (1, 2, 3),
        b"%019d:%019d:%019d" % (1, 2, 3),
    ),
)
parts = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(b"\x01".join),
    st.sampled_from([b"", b"TAGS", b"\x01", b"DT_ENTRY", record.CRC_MARK.removesuffix(b"\x02")]),
)
endings = st.sampled_from([b"", b"\x02", record.CRC_ENDING, record.CRC_MARK])
records = st.builds(
    record.Record,
    topic=st.sampled_from(["orders", "töpic", "x" * 127]),
    queue=st.integers(0, 2**31 - 1),
    body=st.one_of(st.binary(max_size=40), st.just(zlib.compress(b"long" * 40))),
    properties=st.tuples(st.lists(parts, max_size=6).map(b"\x02".join), endings).map(b"".join),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 1, 0x101, 0x301, 0x401]),
    born_at_ms=st.integers(0, 2**62),
    born_host=st.sampled_from(HOSTS),
    stored_at_ms=st.integers(0, 2**62),
    store_host=st.sampled_from(HOSTS),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    position=st.integers(0, 2**62),
    magic=st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2]),
)
TWICE = b"TAGS\x01first\x02UNIQ_KEY\x01A\x02TAGS\x01last\x02UNIQ_KEY\x01B\x02TAGS\x01"


def reader(base: type, views: object, split: object) -> ModuleType:
    """The SDK's module on top of this View."""
    spec = importlib.util.find_spec("duetime.client.record")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "View", base)
        patch.setattr(view, "quickest_views", views)
        patch.setattr(view, "quickest_split", split)
        spec.loader.exec_module(module)
    return module


PYTHON = reader(view.PythonView, view.views, view.split)
TWIN = reader(twin.View, twin.views, twin.split)


def outcome(read: Callable[[], object]) -> object:
    """The result or the error of a read."""
    try:
        return read()
    except Exception as error:
        return type(error), str(error)


def told(message: object) -> dict[str, object]:
    """All that a message says of itself."""
    found = {name: outcome(lambda name=name: getattr(message, name)) for name in [*FIELDS, *OWN]}  # type: ignore[misc]
    for name in (*NAMES, b"a\x02b", b"color\x01"):
        found[f"text {name!r}"] = outcome(lambda name=name: message.text_of(name))  # type: ignore[misc, attr-defined]
    return found | {"repr": outcome(lambda: repr(message))}


@given(records, st.one_of(st.none(), st.integers(0, 2**31 - 1)))
@example(
    record.Record("orders", 1, b"", b"TAGS\x01first\x02UNIQ_KEY\x01A\x02TAGS\x01last\x02UNIQ_KEY\x01B\x02TAGS\x01"), 0
)
@example(record.Record("orders", 1, b"", record.CRC_MARK), None)
@example(record.Record("orders", 1, b"", b"DT_ENTRY\x011:2:3"), None)
def test_readers_agree_on_a_whole_record(made: record.Record, queue: int | None) -> None:
    data = record.encode(made)
    python, quick = PYTHON.ReceivedMessage(data, queue), TWIN.ReceivedMessage(data, queue)
    assert told(quick) == told(python)
    assert [type(getattr(quick, name)) for name in ("id", "offset", "tags")] == [str, int, str]


@given(records, st.integers(0, 2**32), st.integers(1, 6))
def test_readers_agree_on_a_damaged_record(made: record.Record, seed: int, flips: int) -> None:
    data = damaged(record.encode(made), random.Random(seed), flips)
    assert told(TWIN.ReceivedMessage(data)) == told(PYTHON.ReceivedMessage(data))


@pytest.mark.parametrize("at", range(90))
def test_readers_agree_on_a_record_with_a_changed_head(at: int) -> None:
    whole = record.encode(record.Record("orders", 1, b"body", b"TAGS\x01a\x02DT_ENTRY\x011:2:3", position=7))
    for byte in (0, 1, 0x7F, 0x80, 0xFF):
        data = whole[:at] + bytes([byte]) + whole[at + 1 :]
        assert told(TWIN.ReceivedMessage(data)) == told(PYTHON.ReceivedMessage(data))


def test_readers_agree_on_every_end_of_a_record() -> None:
    whole = record.encode(record.Record("orders", 1, b"body", b"TAGS\x01a\x02DT_ENTRY\x011:2:3" + record.CRC_ENDING))
    for end in range(len(whole) + 1):
        assert told(TWIN.ReceivedMessage(whole[:end])) == told(PYTHON.ReceivedMessage(whole[:end]))


@given(st.lists(records, max_size=5), st.integers(0, 2**32), st.integers(0, 2))
def test_records_are_split_alike(made: list[record.Record], seed: int, flips: int) -> None:
    whole = b"".join(map(record.encode, made))
    data = damaged(whole, random.Random(seed), flips) if whole and flips else whole
    for read in (lambda of: [told(one) for one in of.split_records(data, 3)], lambda of: of.slices(data)):
        assert outcome(lambda read=read: read(TWIN)) == outcome(lambda read=read: read(PYTHON))  # type: ignore[misc]


def test_both_have_the_same_face() -> None:
    def public(kind: type) -> list[str]:
        return [name for name in dir(kind) if not name.startswith("_")]

    python, quick = PYTHON.ReceivedMessage, TWIN.ReceivedMessage
    assert public(quick) == public(python)
    assert {name: getattr(quick, name).__doc__ for name in [*FIELDS, *OWN, "text_of"]} == {
        name: getattr(python, name).__doc__ for name in [*FIELDS, *OWN, "text_of"]
    }
    for kind in (python, quick):
        message = kind(record.encode(record.Record("orders", 1, b"", b"")))
        for name in ("color", "body", "queue"):
            with pytest.raises(AttributeError):
                setattr(message, name, 1)
        assert not hasattr(message, "__dict__")
        assert len({message, copy.copy(message)}) == 2
        with pytest.raises(TypeError):
            kind()


def test_a_message_that_was_never_made_is_an_error_and_no_crash() -> None:
    message = twin.View.__new__(twin.View)
    assert set(map(type, told(message).values())) <= {tuple, str}
    with pytest.raises(TypeError):
        twin.View(None)
    with pytest.raises(TypeError):
        twin.views(int, record.encode(record.Record("orders", 1, b"", b"")))


@pytest.mark.parametrize("source", [PYTHON, TWIN])
@pytest.mark.parametrize("target", [PYTHON, TWIN])
def test_twins_read_each_others_pickles(
    source: ModuleType, target: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = record.encode(record.Record("orders", 1, b"body", b"TAGS\x01a"))
    monkeypatch.setattr(chosen, "ReceivedMessage", source.ReceivedMessage)
    pickled = [pickle.dumps(source.ReceivedMessage(data, queue)) for queue in (None, 5)]
    monkeypatch.setattr(chosen, "ReceivedMessage", target.ReceivedMessage)
    for one, queue in zip(pickled, (None, 5), strict=True):
        message = pickle.loads(one)
        assert type(message) is target.ReceivedMessage
        assert told(message) == told(source.ReceivedMessage(data, queue))


def test_copies_keep_the_fields_of_subclasses() -> None:
    data = record.encode(record.Record("orders", 1, b"body", b""))
    delivery = DeliveryAttempt("orders", False, b"0123456789", 99, 1.5, receipts={0: b"receipt"})
    (leased,) = leased_messages(data, 3, delivery, [2])
    leased.lose()
    for copied in (copy.copy(leased), copy.deepcopy(leased), pickle.loads(pickle.dumps(leased))):
        assert type(copied) is LeasedMessage
        assert told(copied) == told(leased)
        assert (copied.receipt, copied.attempt, copied.lost, copied.ends_at_s) == (b"receipt", 2, True, 1.5)
    for of in (PYTHON, TWIN):
        kind = type("Kind", (of.ReceivedMessage,), {})
        message = kind(data)
        message.color = "red"
        assert copy.copy(message).color == "red"


@pytest.mark.parametrize("of", [PYTHON, TWIN])
def test_a_kept_message_does_not_keep_the_answer_that_it_came_in(of: ModuleType) -> None:
    answer = record.encode(record.Record("orders", 1, b"body" * 100, b"")) * 50
    before = sys.getrefcount(answer)
    kept = of.split_records(answer, 3)[7]
    parts = of.slices(answer)
    assert sys.getrefcount(answer) == before
    assert kept.body == b"body" * 100
    assert set(map(len, parts)) == {len(answer) // 50}


def test_a_compressed_body_is_read_by_the_class_on_top() -> None:
    data = record.encode(record.Record("orders", 1, zlib.compress(b"long"), b"", sys_flag=1))
    for kind in (view.PythonView, twin.View):
        with pytest.raises(NotImplementedError):
            _ = kind(data).body
