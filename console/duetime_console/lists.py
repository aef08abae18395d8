"""Lists with search, order and pages; the address alone determines the shown part."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

# Rows of one page of a list.
ROWS_MAX = 100
# Characters of a search text.
SEARCH_CHARS_MAX = 256
# Longer lists are not sorted by values that need a call for each row.
ASKED_MAX = 200


@dataclass(frozen=True, slots=True)
class ListColumn(Generic[T]):
    """A column that can sort a list."""

    name: str
    title: str
    value: Callable[[T], Any]
    is_number: bool = False
    # Whether a call for each row returns its value: above ASKED_MAX rows only the page's rows are asked.
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """The head of a column: `order` is `ascending`, `descending` or `none`, `address` reverses it; empty: the column
    can't sort the list."""

    title: str
    order: str
    address: str
    is_number: bool


class ListView(Generic[T]):
    """The parts of an address about a list: `q`, `sort` (`name`, or `-name` for the reverse) and `page`; and other
    parameters for its links (`kept`)."""

    def __init__(
        self, query: Mapping[str, str], columns: Sequence[ListColumn[T]], sort: str, kept: Iterable[str] = ()
    ) -> None:
        self.q = query.get("q", "")[:SEARCH_CHARS_MAX].strip()
        self.kept = {name: query[name] for name in kept if query.get(name)}
        self._columns = {column.name: column for column in columns}
        wanted = query.get("sort", sort)
        self.sort = wanted if wanted.removeprefix("-") in self._columns else sort
        page = query.get("page", "1")
        self.page = int(page) if page.isascii() and page.isdigit() and page[:1] != "0" and len(page) < 9 else 1
        self.rows: Sequence[T] = ()
        self.found_count = 0
        # Whether only the page's rows have values.
        self.is_cut = False

    def show(self, rows: Iterable[T], text: Callable[[T], str]) -> None:
        """Takes the rows of the requested page: those whose text has all words of `q`, sorted."""
        found = self.found(rows, text)
        column = self._columns[self.sort.removeprefix("-")]
        found.sort(key=column.value, reverse=self.sort.startswith("-"))
        self.found_count = len(found)
        self.page = min(self.page, self.page_count)
        self.rows = found[(self.page - 1) * ROWS_MAX : self.page * ROWS_MAX]

    def found(self, rows: Iterable[T], text: Callable[[T], str]) -> list[T]:
        """The rows that `q` finds."""
        words = set(self.q.lower().split())
        return [row for row in rows if _has_all(text(row).lower(), words)]

    async def ask(
        self,
        rows: Iterable[T],
        text: Callable[[T], str],
        ask: Callable[[Sequence[T]], Awaitable[None]],
    ) -> None:
        """As `show`, but first asks for values of columns (`is_asked`): for all rows that `q` finds, or, above
        ASKED_MAX rows, for those of the page; the list is then sorted by another column."""
        found = self.found(rows, text)
        if len(found) <= ASKED_MAX:
            await ask(found)
            self.show(found, text)
            return
        self.is_cut = True
        if self._columns[self.sort.removeprefix("-")].is_asked:
            self.sort = next(column.name for column in self._columns.values() if not column.is_asked)
        self.show(found, text)
        await ask(self.rows)

    @property
    def page_count(self) -> int:
        return max(-(-self.found_count // ROWS_MAX), 1)

    @property
    def heads(self) -> list[ColumnHead]:
        return [self._head(column) for column in self._columns.values()]

    def address(self, **changes: Any) -> str:
        """The query of the same list with these values changed."""
        values = self.kept | {"q": self.q, "sort": self.sort, "page": self.page if self.page > 1 else ""} | changes
        return "?" + urlencode({name: value for name, value in values.items() if value not in ("", None)})

    def _head(self, column: ListColumn[T]) -> ColumnHead:
        name = self.sort.removeprefix("-")
        if self.is_cut and column.is_asked:
            return ColumnHead(column.title, "none", "", column.is_number)
        if name != column.name:
            # The first click on a column of numbers shows the largest.
            turned, order = ("-" * column.is_number) + column.name, "none"
        else:
            descending = self.sort.startswith("-")
            turned, order = (name, "descending") if descending else (f"-{name}", "ascending")
        return ColumnHead(column.title, order, self.address(sort=turned, page=""), column.is_number)


def _has_all(text: str, words: set[str]) -> bool:
    return all(word in text for word in words)
