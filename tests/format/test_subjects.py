"""Index words of a journal's records."""

from duetime_format import subjects
from duetime_format.ranges import ranges
from hypothesis import given
from hypothesis import strategies as st

RUNS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 600)), min_size=1, max_size=50)


def offsets_of(gaps: list[tuple[int, int]]) -> list[int]:
    """Ascending offsets: each pair skips some and takes some."""
    found, at = list[int](), 0
    for gap, count in gaps:
        found += range(at + gap, at + gap + count)
        at += gap + count
    return found


@given(RUNS, st.data())
def test_every_offset_leads_to_the_words_of_its_run(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    offsets = offsets_of(gaps)
    words = subjects.words_of("orders", 3, ranges(offsets))
    assert len(words) <= 2 * min(len(gaps), subjects.RUNS_MAX)
    offset = data.draw(st.sampled_from(offsets))
    assert set(subjects.words_at("orders", 3, offset)) & set(words)


def test_a_far_offset_and_another_queue_have_other_words() -> None:
    words = set(subjects.words_of("orders", 3, ranges(list(range(64, 128)))))
    assert len(words) == 1
    assert not words & set(subjects.words_at("orders", 3, 128))
    assert not words & set(subjects.words_at("orders", 4, 64))
    assert not words & set(subjects.words_at("order", 33, 64))


def test_properties_say_from_which_offset_on_records_have_words() -> None:
    encoded = subjects.properties_of(["a", "b", "a"], 17)
    assert encoded.startswith(b"KEYS\x01a b\x02DT_INDEXED\x0117\x02__CRC32#")
    assert subjects.since_of(encoded) == 17
    assert subjects.since_of(subjects.properties_of([], 0)) == 0
    assert subjects.since_of(b"KEYS\x01a\x02DT_INDEXED\x01-3") is None
    assert subjects.since_of(b"__CRC32#\x010000000000\x02") is None
