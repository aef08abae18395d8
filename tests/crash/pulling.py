"""Reads a topic from its beginning to its end, and stops there."""

from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.serving import make_channel

CALL_TIMEOUT_S = 30.0


async def pulled_ids(address: str, topic: str) -> list[str]:
    """The id of every message that a reader of the topic finds, queue by queue."""
    found: list[str] = []
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        route = await stub.GetRoute(gateway_pb2.GetRouteRequest(topic=topic), timeout=CALL_TIMEOUT_S)
        for queue in range(len(route.queues)):
            offset = 0
            while True:
                request = gateway_pb2.PullRequest(topic=topic, queue=queue, offset=offset, max_count=1_000)
                answer = await stub.Pull(request, timeout=CALL_TIMEOUT_S)
                found += [one.id for one in answer.messages]
                offset = answer.next_offset
                if offset >= answer.max_offset:
                    break
    return found
