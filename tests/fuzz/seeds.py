"""Valid bytes to begin with: records of every shape, and the requests that carry them."""

import zlib
from dataclasses import replace

from duetime.v1 import gateway_pb2, message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import encode_properties

IPV4, IPV6 = record.host_bytes("127.0.0.1", 9800), record.host_bytes("2001:db8::1", 10911)
NOW_MS = 1_700_000_000_000


def made(
    topic: str = "orders", body: bytes = b"body", properties: dict[str, str] | None = None, **fields: int
) -> bytes:
    given = {"TAGS": "paid", "KEYS": "a b", "UNIQ_KEY": "7F00000100002A9C0FF1E3"} if properties is None else properties
    encoded = record.with_crc_mark(encode_properties(given))
    return record.encode(record.Record(topic, 1, body, encoded, born_host=IPV4, store_host=IPV4, **fields))


DEFERRED = {"UNIQ_KEY": "A", "REAL_TOPIC": "orders", "REAL_QID": "3"}
LEVEL = made(SCHEDULE_TOPIC, properties={**DEFERRED, "DELAY": "2"}, queue_offset=5)
TIMER = made(TIMER_TOPIC, properties={**DEFERRED, "TIMER_OUT_MS": "1700000009999", "TIMER_DELAY_MS": "5000"})
RESTORED = made(properties={"UNIQ_KEY": "B", "DT_ENTRY": "2:17:1700000000000", "color": "red", "size": "7"})
RETRIED = made(
    "%RETRY%g", properties={"RETRY_TOPIC": "orders", "DT_ORIGIN": "a:1:2", "DT_VISIBLE_AT": "17"}, reconsume_times=3
)
HALF = made(
    HALF_TOPIC,
    properties={"UNIQ_KEY": "H", "TRAN_MSG": "true", "PGROUP": "billing", "REAL_TOPIC": "orders", "REAL_QID": "0"},
    sys_flag=layout.SYS_TRANSACTION_PREPARED,
)
PACKED = made(body=zlib.compress(b"long" * 40), sys_flag=layout.SYS_COMPRESSED)
WIDE = record.encode(record.Record("töpic", 7, b"", b"", sys_flag=0, born_host=IPV6, store_host=IPV6))
NEWER = record.encode(replace(record.decode(made()), magic=layout.MAGIC_V2))
BARE = record.encode(record.Record("o", 0, b"x", b"TAGS\x01a\x02TAGS\x01b\x02"))
RECORDS = [made(), LEVEL, TIMER, RESTORED, RETRIED, HALF, PACKED, WIDE, NEWER, BARE]
RUNS = [made() + LEVEL + RESTORED, RESTORED * 3, HALF + HALF, *RECORDS]
NAMES = [
    name.encode()
    for name in (
        *("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_DELAY_SEC", "DT_ENTRY"),
        *("DT_HALF", "DT_UPSERT", "DT_VISIBLE_AT", "DT_ORIGIN", "PGROUP", "__transactionId__", "SCHEDULE_TOPIC_XXXX"),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "1:2:1700000000000", "1700000009999", "__CRC32#\x010000000000\x02"),
    )
]


def sealed_record(data: bytes) -> bytes:
    """A record with the size and the checksums of its bytes, where it can be taken apart."""
    if len(data) < layout.RECORD_BYTES_MIN:
        return data
    sized = len(data).to_bytes(4, "big") + data[4:]
    try:
        return record.encode(record.decode(sized, check_crc=False))
    except DamagedBytes:
        return data


def sealed_run(data: bytes) -> bytes:
    """As `sealed_record`, of records that stand back to back; the rest as it is. Each gets its position."""
    parts, at = [], 0
    while at < len(data):
        size = layout.size_at(data, at)
        try:
            found = record.decode(data, at, check_crc=False)
        except DamagedBytes:
            return b"".join([*parts, data[at:]])
        parts.append(record.encode(replace(found, position=sum(map(len, parts)))))
        at += size
    return b"".join(parts)


def sealed_file(data: bytes) -> bytes:
    """A file that begins with a mark of four bytes and the CRC-32 of all after it."""
    return data[:4] + zlib.crc32(data[8:]).to_bytes(4, "big") + data[8:]


MESSAGES = [
    message_pb2.Message(
        topic="orders", body=b"body", tags="paid", keys=["a", "b"], id="A1", properties={"color": "red"}
    ),
    message_pb2.Message(topic="paid", body=b"x" * 40, delay_level=2, sharding_key="k"),
    message_pb2.Message(topic="orders", body=b"", delay_ms=5_000, queue=1, flag=-1),
    message_pb2.Message(topic="orders", body=b"z", deliver_at_ms=NOW_MS + 5_000, id="B", replace=True, max_wait_ms=9),
]
SENDS = [
    *(gateway_pb2.SendRequest(messages=[one]).SerializeToString() for one in MESSAGES),
    gateway_pb2.SendRequest(messages=MESSAGES[:3]).SerializeToString(),
]
PACKS = [
    gateway_pb2.SendRequest(
        packs=[
            gateway_pb2.Pack(
                topic="orders", sizes=[1, 0, 3], bodies=b"abcd", id_prefix="7F0000014D2A", first_number=254
            ),
            gateway_pb2.Pack(topic="orders", sizes=[2], bodies=b"ef", id_prefix="7F0000014D2A", first_number=257),
        ]
    ).SerializeToString(),
    gateway_pb2.SendRequest(
        packs=[gateway_pb2.Pack(topic="paid", sizes=[4], bodies=b"abcd", delay_ms=1_000, tags="new")]
    ).SerializeToString(),
]
BATCHES = [
    gateway_pb2.SendBatchRequest(topic="orders", messages=MESSAGES[:1], queue=2).SerializeToString(),
    gateway_pb2.SendBatchRequest(
        topic="orders", sharding_key="k", messages=[message_pb2.Message(body=b"1")] * 3
    ).SerializeToString(),
]
ENDS = [
    pb.EndTransactionRequest(
        group="billing",
        ends=[pb.TransactionEnd(transaction_id=name, decision=pb.DECISION_COMMIT) for name in ("1.2.3.x", "0.0.0.a.b")],
    ).SerializeToString()
]
