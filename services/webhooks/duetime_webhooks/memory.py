"""The memory that a worker has for messages, from their arrival until the server has answered their outcome.

    take: room for an answer ──▶ receive ──▶ received: its messages instead ──▶ release: each settled message

A message may be larger than the room that was asked for it. Such a message counts from its arrival on, so that a worker
holds at most the limit, and one message more for each webhook.
"""

from duetime.client.consuming.leases import RECEIVE_BYTES_MAX

from duetime_webhooks.metrics import WebhookMetrics
from duetime_webhooks.shares import FairShares


class MessageMemory:
    """The bytes of messages that all webhooks of a worker hold."""

    def __init__(self, bytes_max: int, metrics: WebhookMetrics) -> None:
        self.shares = FairShares(bytes_max, may_exceed=True)
        self._metrics = metrics
        metrics.messages_bytes.set_function(lambda: self.shares.used)

    def divide(self, count: int) -> None:
        """Sets the number of webhooks."""
        self.shares.divide(count)

    def room(self, webhook: str) -> "WebhookRoom":
        """The part of a new consumer."""
        return WebhookRoom(self, webhook, self._metrics)


class WebhookRoom:
    """The bytes that one consumer holds; see duetime.client.consuming.room.ReceiveRoom."""

    def __init__(self, memory: MessageMemory, webhook: str, metrics: WebhookMetrics) -> None:
        self._shares = memory.shares
        self._webhook = webhook
        self._metrics = metrics
        self._held = 0

    async def take(self) -> int:
        # Half of a share, so that the share of a webhook with waiting messages has room for a further answer.
        asked = max(1, min(RECEIVE_BYTES_MAX, self._shares.share // 2))
        with self._metrics.waiting_for_memory.track_inprogress():
            await self._shares.take(self._webhook, asked)
        self._held += asked
        return asked

    def received(self, asked: int, size: int) -> None:
        self._change(size - asked)

    def release(self, size: int) -> None:
        self._change(-size)

    def close(self) -> None:
        """Releases the rest, once the consumer has ended."""
        self._change(-self._held)

    def _change(self, by: int) -> None:
        self._held += by
        self._shares.change(self._webhook, by)
