"""Rules for requests that search. Pure.

Each `check_` raises InvalidArgument with all violations that can be found without knowing the topic.
"""

from duetime_core.errors import Violation, refuse
from duetime_format import limits
from duetime_format.errors import within

from duetime_gateway.queries import IdQuery, KeyQuery, OffsetSearch
from duetime_gateway.rules import INT64_MAX, read_violations


def check_query(query: KeyQuery) -> None:
    """See the module."""
    found = list(read_violations("topic", query.topic))
    if query.key and query.tag:
        found.append(Violation("tag", "is given beside a key: only one of them can be looked up"))
    found += _text_violations("tag", query.tag) if query.tag else _text_violations("key", query.key)
    found += within("from_ms", query.from_ms, 0, INT64_MAX)
    found += within("to_ms", query.to_ms, 0, INT64_MAX)
    found += within("max_count", query.max_count, 0, limits.QUERY_COUNT_MAX)
    refuse(found)


def check_id(query: IdQuery) -> None:
    """See the module."""
    found = _text_violations("id", query.id)
    found += read_violations("topic", query.topic) if query.topic else ()
    refuse(found)


def check_search(search: OffsetSearch) -> None:
    """See the module."""
    found = list(read_violations("topic", search.topic))
    found += within("queue", search.queue, 0, limits.QUEUE_COUNT_MAX - 1)
    if search.at is None:
        found.append(Violation("at_ms", "none of at_ms, earliest and latest is set"))
    refuse(found)


def _text_violations(field: str, text: str) -> list[Violation]:
    """A key or an id: any text that properties can hold."""
    if not text:
        return [Violation(field, "is empty")]
    if len(text) > limits.PROPERTIES_BYTES_MAX:
        most = f"properties hold {limits.PROPERTIES_BYTES_MAX} bytes"
        return [Violation(field, f"is {len(text)} characters long; {most}")]
    return []
