"""Contents of a cluster, by the SDK and the gateway's calls."""

from typing import Any

from duetime import AsyncReceiver, LeasedMessage
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime.v1.message_pb2 import StoredMessage


async def read_topic(stub: gateway_pb2_grpc.GatewayStub, topic: str) -> list[StoredMessage]:
    """All messages that a topic has now, queue by queue."""
    description = await stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name=topic), timeout=60)
    found: list[StoredMessage] = []
    for queue in description.queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            request = gateway_pb2.PullRequest(topic=topic, queue=queue.queue, offset=offset, max_count=1_000)
            answer: Any = await stub.Pull(request, timeout=60)
            assert [message.offset for message in answer.messages] == list(range(offset, answer.next_offset))
            found += answer.messages
            offset = answer.next_offset
    return found


async def receive_all(receiver: AsyncReceiver) -> list[LeasedMessage]:
    """All that the group can have now, acknowledged."""
    received: list[LeasedMessage] = []
    while got := await receiver.receive(max=1_000, wait="0s"):
        assert await receiver.ack(got) == []
        received += got
    return received
