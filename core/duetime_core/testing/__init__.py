"""The test kit: a clock that a test moves, and the whole cluster in one process on it.

with LocalCluster() as cluster, Producer(cluster.address) as producer:
    producer.send("orders", b"cancel 42", delay="2h")
    cluster.advance("2h")          # milliseconds of real time later, the message is in its topic
"""

from duetime_core.testing.clock import FakeClock
from duetime_core.testing.cluster import Cluster
from duetime_core.testing.local import LocalCluster

__all__ = ["Cluster", "FakeClock", "LocalCluster"]
