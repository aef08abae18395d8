"""Lists as their addresses say them."""

from typing import Any

import pytest
from duetime_console.lists import ROWS_MAX, SEARCH_CHARS_MAX, ListColumn, ListView

COLUMNS: list[ListColumn[Any]] = [
    ListColumn("name", "Name", lambda row: row[0]),
    ListColumn("size", "Size", lambda row: row[1], is_number=True),
]
ROWS = [("orders", 3), ("billing", 7), ("orders-old", 1)]


def listed(**query: str) -> ListView[Any]:
    listing = ListView(query, COLUMNS, "name", kept=["all"])
    listing.show(ROWS, lambda row: row[0])
    return listing


def test_a_list_is_sorted_and_searched_by_its_address() -> None:
    assert [row[0] for row in listed().rows] == ["billing", "orders", "orders-old"]
    assert [row[1] for row in listed(sort="-size").rows] == [7, 3, 1]
    assert [row[0] for row in listed(q=" OLD ord ").rows] == ["orders-old"]
    assert listed(q="none").rows == []


def test_search_asks_each_row_for_its_text_once() -> None:
    asked = []
    listing = ListView({"q": "o r d " * 10_000}, COLUMNS, "name")
    listing.show(ROWS, lambda row: asked.append(row[0]) or row[0])  # type: ignore[func-returns-value]
    assert sorted(asked) == ["billing", "orders", "orders-old"]
    assert len(listing.q) <= SEARCH_CHARS_MAX


@pytest.mark.parametrize("sort", ["", "nonsense", "--name", "name; drop"])
def test_invalid_sort_order_falls_back_to_the_default(sort: str) -> None:
    assert listed(sort=sort).sort == "name"


def test_heads_turn_the_order_and_keep_the_rest() -> None:
    name, size = listed(q="o", all="1", sort="name").heads
    assert (name.order, name.address) == ("ascending", "?all=1&q=o&sort=-name")
    # The first sort by a number is descending.
    assert (size.order, size.address) == ("none", "?all=1&q=o&sort=-size")
    assert listed(sort="-name").heads[0].address == "?sort=name"


@pytest.mark.parametrize(
    ("page", "number"), [("2", 2), ("99", 3), ("0", 1), ("-1", 1), ("x", 1), ("²", 1), ("9" * 99, 1)]
)
def test_invalid_page_number_shows_the_nearest(page: str, number: int) -> None:
    listing = ListView({"page": page}, COLUMNS, "size")
    listing.show([("row", count) for count in range(2 * ROWS_MAX + 1)], lambda row: row[0])
    assert listing.page == number
    assert listing.rows[0][1] == (number - 1) * ROWS_MAX
    assert len(listing.rows) == (ROWS_MAX if number < 3 else 1)
