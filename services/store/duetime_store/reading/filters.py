"""Selection of a topic's messages by tags and by an SQL expression over properties; both must hold.

The tag hash in the unit is checked before the record is read. The tag itself is then compared in the record, so another
tag with the same hash does not pass.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from duetime_format import limits, record, texts
from duetime_format.columns import values
from duetime_format.properties import value_of
from duetime_format.units import Ints

from duetime_store.reading.conditions import refused
from duetime_store.reading.turns import ScanTurns

if TYPE_CHECKING:
    from duetime_store.reading.sql import Sql

_TAGS = record.TAGS.encode()
# Parsed filters; one takes up to some 60 KB.
_REMEMBERED = 256
_SHOWN_CHARS = 40


@dataclass(frozen=True, eq=False, slots=True)
class Filter:
    """A filter of messages, made by `parse`. Filters with the same parts in the same order have equal `text`."""

    text: str = ""
    # None: messages with any tag or none.
    tags: frozenset[bytes] | None = None
    # Hashes of the tags, as in units.
    codes: Ints | None = None
    sql: "Sql | None" = None

    @property
    def passes_all(self) -> bool:
        return self.tags is None and self.sql is None

    @property
    def cost(self) -> int:
        """The cost of judging a record, in words of an expression: some 0.2 to 0.5 us each."""
        return 1 if self.sql is None else self.sql.cost

    @staticmethod
    def known(tags: str, sql: str) -> "Filter | None":
        """A recently parsed filter; None: it has to be parsed, which may take some milliseconds."""
        return _known.get((tags, sql))

    @staticmethod
    def parse(tags: str, sql: str = "") -> "Filter":
        """`tags`: `a || b`, empty or `*` for all. `sql`: an expression, empty for all. Remembers parsed filters.

        Raises:
            InvalidArgument: a part is too long, or the expression is wrong; the violation has the place.
        """
        found = _known.get((tags, sql))
        if found is None:
            found = _parse(tags, sql)
            if len(_known) >= _REMEMBERED:
                del _known[next(iter(_known))]
            _known[tags, sql] = found
        return found

    def match(self, properties: bytes) -> bool:
        """Whether a message with these encoded properties passes."""
        if self.tags is not None and value_of(properties, _TAGS) not in self.tags:
            return False
        return self.sql is None or bool(
            self.sql.passing({name: [value_of(properties, name) or None] for name in self.sql.names}, 1)[0]
        )

    def passing(self, records: bytes, sizes: list[int]) -> npt.NDArray[np.bool_]:
        """Whether each of the records, back to back, passes; one of size 0 does not."""
        passing = np.array(sizes, np.int64) > 0
        if self.passes_all:
            return passing
        names = (_TAGS, *self.sql.names) if self.sql is not None else (_TAGS,)
        found = dict(zip(names, values(records, sizes, names), strict=True))
        if self.tags is not None:
            passing &= np.fromiter(map(self.tags.__contains__, found[_TAGS]), np.bool_, len(sizes))
        if self.sql is not None:
            passing &= self.sql.passing(found, len(sizes))
        return passing


_known: dict[tuple[str, str], Filter] = {}


async def parsed(turns: ScanTurns, tags: str, sql: str) -> Filter:
    """As Filter.parse, but in a turn of its own if the filter is not known."""
    found = Filter.known(tags, sql)
    if found is None:
        with turns.walk() as walk:
            await walk.begin()
            found = Filter.parse(tags, sql)
    return found


def _expression(text: str) -> "Sql":
    # Imported at the first expression: a start need not wait for the parser's generator.
    from duetime_store.reading import sql

    return sql.parse(text)


def _parse(tags: str, sql: str) -> Filter:
    if len(tags) > limits.FILTER_CHARS_MAX:
        raise refused("tags", f"has {len(tags)} characters, more than {limits.FILTER_CHARS_MAX}")
    condition = _expression(sql) if sql.strip() else None
    text = f"sql: {condition.text}" if condition else ""
    names = frozenset(tag.strip() for tag in tags.split("||")) - {""}
    if not names and tags.strip():
        # Rejected as in RocketMQ: treating it as all tags would be an unintended filter.
        raise refused("tags", f"{tags[:_SHOWN_CHARS]!r} names no tag; empty, or *, is for all")
    if not names or "*" in names:
        return Filter(text, sql=condition)
    if wrong := sorted(tag for tag in names if "|" in tag):
        raise refused(
            "tags", f"{texts.shown(wrong[0])} contains |, which is not allowed in a tag; `a || b` matches either"
        )
    encoded = frozenset(tag.encode() for tag in names)
    codes = np.array(sorted({record.tags_code(tag) for tag in encoded}))
    shown = "tags: " + " || ".join(sorted(names))
    return Filter(f"{shown}; {text}" if text else shown, encoded, codes, condition)
