"""Settings of new consumer groups."""

from datetime import datetime

from duetime.client.errors import InvalidArgument
from duetime.client.message import at_ms
from duetime.v1 import consumer_pb2


def new_group(name: str, ordered: bool, start: str | datetime) -> consumer_pb2.Group:
    """Raises: InvalidArgument: `start` is neither "earliest", "latest" nor a datetime."""
    group = consumer_pb2.Group(name=name, ordered=ordered)
    if isinstance(start, datetime):
        group.start, group.start_at_ms = consumer_pb2.GROUP_START_TIME, at_ms(start)
    elif start == "latest":
        group.start = consumer_pb2.GROUP_START_LATEST
    elif start != "earliest":
        raise InvalidArgument.of("start", f"{start!r} is neither 'earliest', 'latest' nor a datetime")
    return group
