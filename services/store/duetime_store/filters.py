"""Which messages of a topic a reader wants: by tags and by an SQL expression over properties; both must hold.

A unit's tag hash is looked at before the record is read; the tag itself is compared in the record, so that a tag with
an equal hash does not pass.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from duetime_core import record
from duetime_core.errors import Unsupported, Violation

from duetime_store.consumequeue import Ints
from duetime_store.properties import columns, value_of

_TAGS = record.TAGS.encode()


@dataclass(frozen=True, eq=False, slots=True)
class Filter:
    """What passes; made by `parse`. `text` is equal for filters that say the same in the same order."""

    text: str
    # None: any tag, and none.
    tags: frozenset[bytes] | None = None
    # Hashes of the tags, as units have them.
    codes: Ints | None = None
    sql: None = None

    @property
    def passes_all(self) -> bool:
        return self.tags is None and self.sql is None

    @staticmethod
    def parse(tags: str, sql: str = "") -> "Filter":
        """`tags`: `a || b`, empty or `*` for all. `sql`: an expression, empty for all.

        Raises:
            InvalidArgument: the expression is wrong; the violation says where.
        """
        return _parse(tags, sql)

    def match(self, properties: bytes) -> bool:
        """Whether a message with these encoded properties passes."""
        return self.tags is None or value_of(properties, _TAGS) in self.tags

    def passing(self, records: bytes, sizes: list[int]) -> npt.NDArray[np.bool_]:
        """Whether each of the records, back to back, passes; one of size 0 does not."""
        whole = np.array(sizes) > 0
        if self.tags is not None:
            tags = self.tags
            (column,) = columns(records, sizes, (_TAGS,))
            whole &= np.fromiter((value in tags for value in column), np.bool_, len(sizes))
        return whole


@lru_cache(1_024)
def _parse(tags: str, sql: str) -> Filter:
    if sql.strip():
        raise Unsupported([Violation("sql", "is not supported yet")])
    names = frozenset(tag.strip() for tag in tags.split("||")) - {""}
    if not names or "*" in names:
        return Filter("")
    encoded = frozenset(tag.encode() for tag in names)
    codes = np.array(sorted({record.tags_code(tag) for tag in encoded}))
    return Filter(" || ".join(sorted(names)), encoded, codes)
