"""Routes and assignments: queues of one broker, at the address given to the client. Pure."""

from collections.abc import Iterable
from functools import cache

from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

BROKER_NAME = "duetime"
# Assignments of an ordered group, each a queue; a push consumer runs one loop for each, and no more than these.
ASSIGNMENTS_MAX = 8
# The queue number of an assignment to all queues.
ANY_QUEUE = -1
_PORT_MAX = 65_535
# Types known to old clients. A topic takes all unless it was created for one of them; numbers are those of topic types.
_ALL_TYPES = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
# Types of which a topic takes no other, and old clients know nothing.
_OWN_TYPES = (pb.LITE, pb.PRIORITY)


def endpoints_of(typed: pb.Endpoints, advertised: str) -> pb.Endpoints:
    """The endpoints for a client: `advertised`, HOST:PORT, or else the first address configured in it.

    Raises:
        RocketMQError: it has none, or an invalid one.
    """
    if advertised:
        host, _, port = advertised.rpartition(":")
        return pb.Endpoints(scheme=scheme_of(host), addresses=[pb.Address(host=host.strip("[]"), port=int(port))])
    if not typed.addresses:
        raise RocketMQError(pb.ILLEGAL_ACCESS_POINT, "endpoints: has no address")
    first = typed.addresses[0]
    if not first.host or not 0 < first.port <= _PORT_MAX:
        text = f"endpoints: {first.host[:255]!r} with port {first.port} is not an address; ports are 1 to {_PORT_MAX}"
        raise RocketMQError(pb.ILLEGAL_ACCESS_POINT, text)
    return pb.Endpoints(scheme=typed.scheme or scheme_of(first.host), addresses=[first])


def scheme_of(host: str) -> "pb.AddressScheme":
    if ":" in host:
        return pb.IPv6
    return pb.IPv4 if host.replace(".", "").isdigit() else pb.DOMAIN_NAME


@cache
def types_of(message_type: int) -> "tuple[pb.MessageType, ...]":
    """The message types of a topic of this type; 0: all."""
    return tuple(one for one in (*_ALL_TYPES, *_OWN_TYPES) if one == message_type) or _ALL_TYPES


def queues_of(
    topic: pb.Resource, numbers: Iterable[int], endpoints: pb.Endpoints, types: Iterable[int]
) -> list[pb.MessageQueue]:
    """The queues with these numbers, all readable and writable: clients look for queue or broker 0."""
    broker, taken = pb.Broker(name=BROKER_NAME, id=0, endpoints=endpoints), list(types)
    return [
        pb.MessageQueue(topic=topic, id=number, permission=pb.READ_WRITE, broker=broker, accept_message_types=taken)  # type: ignore[arg-type]
        for number in numbers
    ]


def assigned(queue_count: int, *, ordered: bool) -> list[int]:
    """The queues of a consumer's loops: a limited number of single queues for an ordered group, which has one lease per
    queue at a time; else one number for all."""
    return list(range(min(queue_count, ASSIGNMENTS_MAX))) if ordered else [ANY_QUEUE]
