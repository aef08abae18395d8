"""A forger at a store's port with the cluster's secret: nothing is stored that the gateway would refuse, and no pending
message is replaced by another.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest
from duetime import Message, Producer, Puller
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.access.callers import ClusterSecret
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.rpc.channels import make_blocking_channel
from duetime_format import record
from duetime_format.restore import PulledEntry, quarantine, restore

from tests.hostile.bystander import Bystander
from tests.hostile.rig import Rig

SECRET = ClusterSecret("the-secret-that-leaked")
REFUSED = store_pb2.PUT_STATUS_REFUSED
FORGE_S = 3.0


def forged(topic: str = "orders", queue: int = 0, properties: bytes = b"UNIQ_KEY\x01forged") -> bytes:
    return record.encode(record.Record(topic, queue, b"forged", record.with_crc_mark(properties)))


PLAIN = [
    forged(topic="a\0b"),
    forged(topic="../../../evil"),
    forged(topic=".."),
    forged(topic=""),
    forged(queue=2**31 - 1),
    forged(queue=-1),
    forged(topic="DT_GROUPS"),
    forged(topic="DT_QUARANTINE"),
    forged(topic="RMQ_SYS_TRANS_HALF_TOPIC"),
    forged(topic="SCHEDULE_TOPIC_XXXX", queue=99),
    forged(properties=record.lane_entry(1, 0, 0)),
]


class Forger:
    """A client of a store's port."""

    def __init__(self, address: str) -> None:
        self._channel = make_blocking_channel(address, credentials=ClusterCredentials(SECRET))
        self._stub = store_pb2_grpc.StoreStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> "Forger":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def put(self, data: bytes) -> list[int]:
        return list(self._stub.Put(store_pb2.PutRequest(records=data), timeout=10).statuses)

    def put_entry(self, data: bytes, lane: int, entry: int) -> list[int]:
        request = store_pb2.RestoreRequest(records=data, lane=lane, first_entry=entry)
        return list(self._stub.Restore(request, timeout=10).statuses)

    def replace_heads(self, lane: int) -> int:
        """Replaces due records of a lane by others, in every way; returns the number of attempts."""
        request = store_pb2.PullDueRequest(lane=lane, max_count=8, max_bytes=1 << 20, wait_ms=50, ahead_ms=100)
        due = self._stub.PullDue(request, timeout=10)
        at = tried = 0
        for index, size in enumerate(due.sizes):
            entry = PulledEntry(lane, due.first_entry + index, due.due_at_ms[index], due.records[at : at + size])
            at += size
            right = record.decode(restore(entry), check_crc=False)
            for wrong in (
                record.encode(replace(right, body=b"forged")),
                record.encode(replace(right, topic="elsewhere")),
                record.encode(replace(right, properties=right.properties.replace(b"UNIQ_KEY\x01", b"UNIQ_KEY\x01x"))),
                quarantine(entry, "why not"),
            ):
                # Taken before it: DUPLICATE; too early: NOT_DUE.
                assert self.put_entry(wrong, lane, entry.number)[0] != store_pb2.PUT_STATUS_OK
                tried += 1
        return tried


@pytest.mark.proof
def test_forger_at_a_store_changes_nothing(start: Callable[..., Rig]) -> None:
    everywhere = {"DUETIME_CLUSTER_SECRET": SECRET.metadata[0][1]}
    rig = start(dict.fromkeys(("store", "scheduler", "retry", "gateway"), everywhere))
    store = rig.stores[0]
    with Bystander(rig.address) as beside, Forger(store.address) as forger, Producer(rig.address) as producer:
        for data in PLAIN:
            assert forger.put(data) == [REFUSED]
        for data in (b"", b"\xff", PLAIN[0][:-1], bytes(100)):
            with pytest.raises(grpc.RpcError) as caught:
                forger.put(data)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        sent = [f"m{number}" for number in range(30)]
        receipts = producer.send_many([Message("orders", b"right", delay="1s", id=name) for name in sent])
        assert [receipt.message_id for receipt in receipts] == sent
        tried, until = 0, time.monotonic() + FORGE_S
        while time.monotonic() < until:
            tried += forger.replace_heads(1)
        assert tried
        phase = beside.phase()
    assert phase.errors == {}
    with Puller(rig.address, "orders", start="earliest") as puller:
        found: list[tuple[str, bytes]] = []
        while len(found) < len(sent):
            found += [(message.id, message.body) for message in puller.poll(max=100, wait="5s")]
        found += [(message.id, message.body) for message in puller.poll(max=100, wait="1s")]
    assert sorted(found) == sorted((name, b"right") for name in sent)
    assert set(os.listdir(rig.directory)) <= {
        "store-0",
        "metadata.db",
        "metadata.db-wal",
        "metadata.db-shm",
        *(f"{node.name}.log" for node in rig.nodes),
    }
    assert not any("evil" in name for _, folders, files in os.walk(rig.directory) for name in (*folders, *files))
    assert store.metrics()["duetime_store_mismatched_total"] > 0
    assert store.metrics()["duetime_store_quarantined_total"] == 0
