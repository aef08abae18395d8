"""Messages that arrive in a topic of a cluster."""

from duetime import Puller
from duetime_core.testing import LocalCluster


def bodies(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    """Of the first messages of a topic that arrive, in their order; fewer when nothing more comes."""
    found: list[bytes] = []
    with Puller(cluster.address, topic, start="earliest") as puller:
        while len(found) < count:
            messages = puller.poll(wait="30s")
            if not messages:
                break
            found += [message.body for message in messages]
    return found
