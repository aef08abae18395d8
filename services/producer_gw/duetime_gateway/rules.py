"""Rules for common fields of requests: names of topics and groups, filters, bounds. Pure."""

from collections.abc import Iterator

from duetime_core.errors import Violation, refuse
from duetime_format import limits
from duetime_format.admission import group_violations, topic_violations
from duetime_format.names import CLOSED_TOPICS, is_internal_topic

INT64_MAX = (1 << 63) - 1


def read_violations(field: str, topic: str) -> Iterator[Violation]:
    """Violations of the name of a topic to be read."""
    yield from topic_violations(field, topic, system=True)
    if topic in CLOSED_TOPICS:
        yield Violation(field, f"{topic} cannot be read by name: its records belong to the shard")


def group_read_violations(field: str, topic: str) -> Iterator[Violation]:
    """Violations of the name of a topic that a group reads."""
    yield from topic_violations(field, topic, system=True)
    if is_internal_topic(topic):
        yield Violation(field, f"{topic} cannot be received from: it is a system topic, for operators to read (Pull)")


def filter_violations(tags: str, sql: str) -> Iterator[Violation]:
    """Violations of the length of a filter; the store parses it."""
    for field, text in (("tags", tags), ("sql", sql)):
        if len(text) > limits.FILTER_CHARS_MAX:
            yield Violation(field, f"has {len(text)} characters, more than {limits.FILTER_CHARS_MAX}")


def check_topic(field: str, name: str) -> None:
    """Checks the name of a topic to be described. Raises: InvalidArgument."""
    refuse(list(topic_violations(field, name, system=True)))


def check_group_reads(field: str, topic: str) -> None:
    """Checks the name of a topic that a group reads. Raises: InvalidArgument."""
    refuse(list(group_read_violations(field, topic)))


def check_group(field: str, name: str) -> None:
    """Checks a group's name. Raises: InvalidArgument."""
    refuse(list(group_violations(field, name)))
