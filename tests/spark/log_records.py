"""Records of all kinds for tests of log readers: ours, brokers' and impossible ones."""

from duetime_format import record
from duetime_format.layout import MAGIC_V1, MAGIC_V2
from duetime_format.record import Record
from hypothesis import strategies as st

NAMES = [b"TAGS", b"UNIQ_KEY", b"KEYS", b"DELAY", b"REAL_TOPIC", b"REAL_QID", b"DT_ENTRY", b"__CRC32#", b"n", b"m", b""]
VALUES = [b"", b"a", "Grüße".encode(), b"\xff", b"3", b"-1", b"-", b"2147483648", b"0x", b"1:2:3", b"5" * 19, b"a\x01b"]
ENTRIES = [b"DT_ENTRY\x013:77:1700000000000", b"DT_ENTRY\x01%d:1:2" % (1 << 31), b"DT_ENTRY\x011:2:%d" % (1 << 63)]

pairs = st.builds(b"\x01".join, st.tuples(st.sampled_from([*NAMES, b"\xc3", b"e\0"]), st.sampled_from(VALUES)))
parts = st.lists(st.one_of(pairs, st.sampled_from([b"", b"\x01", b"bare", *ENTRIES])), max_size=7).map(b"\x02".join)
many = st.integers(30, 40).map(lambda count: b"\x02".join(b"%d\x01v" % n for n in range(count)))
properties = st.one_of(
    st.builds(bytes.__add__, parts, st.sampled_from([b"", b"\x02", *(b"\x02" + entry for entry in ENTRIES)])),
    st.binary(max_size=40).filter(lambda data: not data.endswith(b"\0")),
    many,
)
hosts = st.sampled_from([bytes(8), b"\x7f\0\0\x01\xff\xff\xff\xff", bytes(20), bytes(range(20))])
records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "SCHEDULE_TOPIC_XXXX", "Bücher", "", "%RETRY%" + "g" * 110]),
    queue=st.integers(-1, 1 << 30),
    body=st.binary(max_size=60),
    properties=properties,
    flag=st.sampled_from([0, -1]),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x301]),
    born_host=hosts,
    store_host=hosts,
    born_at_ms=st.integers(0, 1 << 42),
    stored_at_ms=st.integers(0, 1 << 42),
    reconsume_times=st.integers(0, 16),
    prepared_transaction_offset=st.sampled_from([0, 1 << 40]),
    queue_offset=st.integers(0, 1 << 40),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
)
# Each with a CRC of the whole record, or none.
items = st.lists(st.tuples(records, st.booleans()), max_size=8)
flips = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=3)


def encoded(found: Record, position: int, *, with_crc: bool) -> bytes:
    """The record at a position, as a store leaves it."""
    text = record.with_crc_mark(found.properties) if with_crc else found.properties
    values = {name: getattr(found, name) for name in Record.__slots__} | {"position": position, "properties": text}
    data = record.encode(Record(**values))
    if not with_crc:
        return data
    front = data[: -len(record.CRC_MARK)]
    return front + record.CRC_MARK.replace(b"0" * record.CRC_DIGITS, record.crc_digits(front))


def log_of(made: list[tuple[Record, bool]], position: int = 0) -> tuple[bytes, list[int]]:
    """Records back to back from a position on; their sizes."""
    data, sizes = bytearray(), []
    for found, with_crc in made:
        one = encoded(found, position + len(data), with_crc=with_crc)
        data += one
        sizes.append(len(one))
    return bytes(data), sizes


def flipped(data: bytes, at: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(data)
    for place, bits in at if data else ():
        damaged[place % len(data)] ^= bits
    return bytes(damaged)
