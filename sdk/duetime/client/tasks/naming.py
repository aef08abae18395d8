"""The name of a message's task: the value of a property, or the tag."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from duetime.client.bodies import CONTENT_TYPE
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.errors import InvalidArgument, InvalidMessage
from duetime.client.message import Message, to_proto
from duetime.client.tracing import TRACEPARENT

# The property of occurrences of schedules, with the app's name.
APP = "duetime_app"
# Properties with another meaning in messages of tasks.
_OWN = frozenset((APP, CONTENT_TYPE, TRACEPARENT))


def naming(named_by: str | None) -> Callable[[LeasedMessage], str]:
    """The function that reads the name. A message without the property is named by its tag: those sent before the app
    had the property, for instance.

    Raises:
        InvalidArgument: messages can't have this property, or it has another meaning.
    """
    if named_by is None:
        return attrgetter("tags")
    if not isinstance(named_by, str):
        raise InvalidArgument.of("named_by", f"{named_by!r} is not the name of a property")
    if named_by in _OWN:
        raise InvalidArgument.of("named_by", f"{named_by} has another meaning in messages of tasks")
    try:
        to_proto(Message("topic", b"{}", properties={named_by: "name"}))
    except InvalidMessage as error:
        raise InvalidArgument.of("named_by", error.violations[0].description) from None
    key = named_by.encode()
    return lambda message: message.text_of(key) or message.tags


def named(properties: Mapping[str, str], named_by: str | None, name: str) -> Mapping[str, str]:
    """Properties of a send, with the one that names the task.

    Raises:
        InvalidArgument: they have it, with another value.
    """
    if named_by is None:
        return properties
    if (given := properties.get(named_by, name)) != name:
        raise InvalidArgument.of("properties", f"{named_by} is {given!r}, and it names the task {name}")
    return {**properties, named_by: name}
