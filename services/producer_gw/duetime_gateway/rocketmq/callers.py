"""The caller of a call: the client, its user, the namespace, and its deadline."""

from typing import Any

from duetime_core.access.principal import current
from duetime_format.texts import shown

from duetime_gateway.access.headers import Headers
from duetime_gateway.face.callers import Context, remaining_ms
from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

CLIENT_ID_CHARS_MAX = 255
# Fields of requests that name a topic or a group.
_RESOURCES = ("topic", "group")


class ClientCall:
    """One call of a client."""

    __slots__ = ("client", "context", "language", "namespace", "stored_bytes", "user")

    def __init__(self, context: Context, headers: Headers, client: Client) -> None:
        self.context = context
        self.client = client
        self.namespace = headers.namespace
        self.language = headers.language
        # Size of the bodies that the call stored again, for quotas.
        self.stored_bytes = 0
        # Empty: users are off.
        self.user = current().name

    @property
    def peer(self) -> str:
        return self.context.peer()

    @property
    def remaining_ms(self) -> float | None:
        """Time until the caller's deadline; None: no deadline."""
        return remaining_ms(self.context)


def check_headers(headers: Headers) -> None:
    """Raises: RocketMQError: the client id is missing or too long."""
    if not headers.client_id:
        raise RocketMQError(pb.CLIENT_ID_REQUIRED, "x-mq-client-id: the header is missing")
    if len(headers.client_id) > CLIENT_ID_CHARS_MAX:
        text = f"x-mq-client-id: {shown(headers.client_id)} is longer than the limit, {CLIENT_ID_CHARS_MAX} characters"
        raise RocketMQError(pb.BAD_REQUEST, text)


def put_namespace(request: Any, namespace: str) -> None:
    """Adds the header's namespace to names without one: some clients send it only there."""
    if not namespace:
        return
    fields = request.DESCRIPTOR.fields_by_name
    for name in _RESOURCES:
        if name in fields and request.HasField(name):
            _put(getattr(request, name), namespace)
    if "message_queue" in fields:
        _put(request.message_queue.topic, namespace)
    if "messages" in fields:
        for message in request.messages:
            _put(message.topic, namespace)


def _put(resource: pb.Resource, namespace: str) -> None:
    if not resource.resource_namespace:
        resource.resource_namespace = namespace
