"""Limits that tasks declare. The stores keep them for all workers of the app; a limit belongs to a topic."""

from collections.abc import Iterable
from dataclasses import dataclass

from duetime_format import rates
from duetime_format.limits import PER_KEY_MAX

from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument
from duetime.v1 import consumer_pb2


@dataclass(frozen=True, slots=True)
class TaskLimit:
    """The limit of a task; None: it declares none.

    Raises:
        InvalidArgument: the rate is of another form, or a number is out of range.
    """

    rate: str | None = None
    per_key: int | None = None

    def __post_init__(self) -> None:
        if self.per_key is not None:
            whole("per_key", self.per_key, PER_KEY_MAX)
        self.message("")

    def message(self, topic: str) -> consumer_pb2.GroupLimit:
        """The limit of the app's group in a topic."""
        found = consumer_pb2.GroupLimit(topic=topic, per_key=self.per_key or 0, declared=True)
        if self.rate is not None:
            try:
                rates.fill(found.rate, self.rate)
            except ValueError as error:
                raise InvalidArgument.of("rate", str(error)) from error
        return found

    def check_beside(self, other: "TaskLimit", name: str, topic: str) -> None:
        """Raises: InvalidArgument: a task of the same topic has another rate, or another number of messages by key.

        Calls of a task without `per_key` have no key, so it needs no equal number.
        """
        if self.rate != other.rate:
            raise _different("rate", self.rate, other.rate, name, topic)
        if self.per_key != other.per_key and self.per_key is not None and other.per_key is not None:
            raise _different("per_key", self.per_key, other.per_key, name, topic)


def declared(limits: Iterable[tuple[str, TaskLimit]]) -> list[consumer_pb2.GroupLimit]:
    """The declared limits of a group, of the limits of all its tasks with their topics."""
    found: dict[str, TaskLimit] = {}
    for topic, limit in limits:
        if limit.rate is not None or limit.per_key is not None:
            known = found.get(topic, limit)
            found[topic] = TaskLimit(limit.rate, known.per_key or limit.per_key)
    return [found[topic].message(topic) for topic in sorted(found)]


def _different(field: str, own: object, other: object, name: str, topic: str) -> InvalidArgument:
    text = f"{own} differs from {other} of the task {name}: tasks of one topic, {topic}, share a limit"
    return InvalidArgument.of(field, f"{text}; give both the same, or one of them another topic")
