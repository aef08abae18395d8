"""Topics and groups as named by clients, with or without a namespace, and as stored: `namespace%name`. Pure."""

from duetime_format import record
from duetime_format.limits import LITE_CHARS_MAX
from duetime_format.names import DLQ_PREFIX, RETRY_PREFIX, is_lite_topic
from duetime_format.texts import shown as shown_text

from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

SEPARATOR = "%"
# Properties of lite topics' messages; the first is a field of the protocol.
LITE_PROPERTIES = frozenset({record.LITE_TOPIC, record.MULTI_DISPATCH, record.MULTI_QUEUE_OFFSET})
# Prefixes of groups' topics; the namespace follows them, as in %DLQ%namespace%group.
_PREFIXES = RETRY_PREFIX, DLQ_PREFIX


def stored(resource: pb.Resource) -> str:
    """The stored name."""
    namespace, name = resource.resource_namespace, resource.name
    if not namespace:
        return name
    prefix = _prefix_of(name)
    return f"{prefix}{namespace}{SEPARATOR}{name.removeprefix(prefix)}"


def shown(name: str, namespace: str) -> pb.Resource:
    """The name for a client of a namespace; a name of another namespace stays whole."""
    if not namespace:
        return pb.Resource(name=name)
    prefix = _prefix_of(name)
    rest = name.removeprefix(prefix)
    if not rest.startswith(namespace + SEPARATOR):
        return pb.Resource(name=name)
    return pb.Resource(resource_namespace=namespace, name=prefix + rest[len(namespace) + 1 :])


def _prefix_of(name: str) -> str:
    return next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")


def check_lite_topic(name: str) -> None:
    """Raises: RocketMQError."""
    if not is_lite_topic(name):
        text = f"lite_topic: {shown_text(name)} is not 1 to {LITE_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
        raise RocketMQError(pb.ILLEGAL_LITE_TOPIC, text)
