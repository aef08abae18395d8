"""Pulls: reads queues from an offset, each from its shard."""

from duetime_gateway.consuming.admission import check_pull, check_pull_queues
from duetime_gateway.deadlines import timeout_of
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.queries import Encoding, Pull, PullQueues
from duetime_gateway.routing.places import QueueLocator, on_one_shard, place_of
from duetime_gateway.shards.contract import renumbered_pull, renumbered_queues


class QueuePuller:
    """Returns answers as encoded by the stores; decodes them only if a queue has another number on its shard."""

    def __init__(self, places: QueueLocator, metrics: GatewayMetrics, *, timeout_ms: int) -> None:
        self._places = places
        self._metrics = metrics
        self._timeout_ms = timeout_ms

    async def pull(self, pull: Pull, remaining_ms: float | None) -> bytes:
        """Returns the store's PullResponse, encoded.

        Raises:
            DueTimeError: bad fields, no such topic or queue, or an error of the shard.
        """
        check_pull(pull)
        queue = pull.position.queue
        number, shard_queue = place_of(await self._places.of(pull.topic), pull.topic, queue)
        shard = await self._places.ready_shard(number, pull.topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms, pull.selection.wait_ms)
        answer = self._counted(await shard.store.pull(pull, shard_queue, timeout_ms))
        if shard_queue == queue or pull.selection.encoding == Encoding.RECORDS:
            return answer
        return renumbered_pull(answer, queue)

    async def pull_queues(self, pull: PullQueues, remaining_ms: float | None) -> bytes:
        """As `pull`, with the PullQueuesResponse of the single shard with all the queues."""
        check_pull_queues(pull)
        places = await self._places.of(pull.topic)
        number, shard_queues = on_one_shard(places, pull.topic, pull.positions)
        shard = await self._places.ready_shard(number, pull.topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms, pull.selection.wait_ms)
        answer = self._counted(await shard.store.pull_queues(pull, shard_queues, timeout_ms))
        same = shard_queues == [position.queue for position in pull.positions]
        if same or pull.selection.encoding == Encoding.RECORDS:
            return answer
        return renumbered_queues(answer)

    def _counted(self, answer: bytes) -> bytes:
        self._metrics.pulls.inc()
        self._metrics.bytes_out.inc(len(answer))
        return answer
