"""Reads a topic from its beginning to its end, and stops there."""

from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.rpc.serving import make_channel

CALL_TIMEOUT_S = 30.0


async def pulled(address: str, topic: str) -> list[message_pb2.StoredMessage]:
    """Every message that a reader of the topic finds, queue by queue."""
    found: list[message_pb2.StoredMessage] = []
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        route = await stub.GetRoute(gateway_pb2.GetRouteRequest(topic=topic), timeout=CALL_TIMEOUT_S)
        for queue in range(len(route.queues)):
            offset = 0
            while True:
                request = gateway_pb2.PullRequest(topic=topic, queue=queue, offset=offset, max_count=1_000)
                answer = await stub.Pull(request, timeout=CALL_TIMEOUT_S)
                found += answer.messages
                offset = answer.next_offset
                if offset >= answer.max_offset:
                    break
    return found


async def pulled_ids(address: str, topic: str) -> list[str]:
    """The ids of these."""
    return [one.id for one in await pulled(address, topic)]
