"""The window of remembered ids."""

from duetime_store.recent import RecentIds


def test_the_newest_ids_are_remembered() -> None:
    recent = RecentIds(3)
    recent.add_all([b"A", None, b"B", b"C", b"D"], [0, 10, 20, 30, 40])
    assert [recent.position(name) for name in (b"A", b"B", b"C", b"D", b"E")] == [None, 20, 30, 40, None]
    assert recent.oldest_position(7) == 20


def test_an_id_that_is_sent_again_is_known_by_its_newest_place() -> None:
    recent = RecentIds(3)
    recent.add_all([b"A", b"B", b"A", b"C"], [0, 10, 20, 30])
    assert recent.position(b"A") == 20


def test_an_empty_window_remembers_nothing() -> None:
    recent = RecentIds(0)
    recent.add(b"A", 0)
    assert recent.position(b"A") is None
    assert recent.oldest_position(7) == 7
