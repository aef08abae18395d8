"""A client of a RocketMQ broker's own protocol.

    frame    i32 bytes that follow, i32 bytes of the header, header as JSON, body
    header   code, flag (1: an answer, 2: none is wanted), opaque (the request's number), extFields (texts)

Source: RocketMQ 5.3.3 RemotingCommand, RequestCode, ResponseCode.
"""

import itertools
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from duetime_format import record
from duetime_format.record import Record

PULL, QUERY_OFFSET, MAX_OFFSET, MIN_OFFSET = 11, 14, 30, 31
HEARTBEAT, END_TRANSACTION, CHECK_TRANSACTION = 34, 37, 39
FOUND, NOT_FOUND, SKIPPED, MOVED = 0, 19, 20, 21
NO_OFFSET = 22
COMMIT, ROLLBACK = 8, 12
ANSWER, NO_ANSWER = 1, 2
# Bits of a pull: the subscription is in the request.
_WITH_SUBSCRIPTION = 4
_TIMEOUT_S = 60.0
_PULLED_MAX = 32
_LENGTHS = Struct(">ii")
_HEADER_MASK = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Frame:
    """A request or an answer."""

    code: int
    fields: dict[str, str]
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str = ""


@dataclass(slots=True)
class Client:
    """A connection. Answers are read in the order in which the broker sends them; its own requests are kept."""

    port: int
    asked: list[Frame] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def send(self, code: int, fields: Mapping[str, object], body: bytes = b"", flag: int = 0) -> int:
        """Sends a request, and returns its number."""
        opaque = next(self._numbers)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        header: dict[str, Any] = {
            "code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 495,
            "serializeTypeCurrentRPC": "JSON", "extFields": texts,
        }  # fmt: skip
        encoded = json.dumps(header).encode()
        self._socket.sendall(_LENGTHS.pack(4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        return opaque

    def ask(self, code: int, body: bytes = b"", **fields: object) -> Frame:
        """Sends a request and waits for its answer."""
        opaque = self.send(code, fields, body)
        while True:
            frame = self.read()
            if frame.flag & ANSWER and frame.opaque == opaque:
                return frame
            if not frame.flag & ANSWER:
                self.asked.append(frame)

    def read(self) -> Frame:
        """The next frame. Raises: OSError: none came in time, or the broker has closed the connection."""
        total, kind_and_length = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        rest = self._exactly(total - 4)
        length = kind_and_length & _HEADER_MASK
        header = json.loads(rest[:length])
        fields = header.get("extFields") or {}
        remark = header.get("remark") or ""
        return Frame(header["code"], fields, rest[length:], header["opaque"], header["flag"], remark)

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            parts += part
        return bytes(parts)

    def wait(self, seconds: float) -> None:
        """Keeps the requests that the broker sends within this time."""
        self._socket.settimeout(seconds)
        try:
            self.asked.append(self.read())
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(_TIMEOUT_S)

    def end_of(self, topic: str, queue: int) -> int:
        return int(self.ask(MAX_OFFSET, topic=topic, queueId=queue).fields["offset"])

    def begin_of(self, topic: str, queue: int) -> int:
        return int(self.ask(MIN_OFFSET, topic=topic, queueId=queue).fields["offset"])

    def place_of(self, group: str, topic: str, queue: int) -> int | None:
        """A group's next offset; None: the broker has none."""
        answer = self.ask(QUERY_OFFSET, consumerGroup=group, topic=topic, queueId=queue)
        return None if answer.code == NO_OFFSET else int(answer.fields["offset"])

    def pull(self, topic: str, queue: int, offset: int) -> Frame:
        return self.ask(
            PULL, consumerGroup="reader", topic=topic, queueId=queue, queueOffset=offset, maxMsgNums=_PULLED_MAX,
            sysFlag=_WITH_SUBSCRIPTION, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            expressionType="TAG",
        )  # fmt: skip

    def messages(self, topic: str, queue: int, offset: int = 0) -> Iterator[Record]:
        """All of a queue from an offset on, as a consumer gets them."""
        while True:
            answer = self.pull(topic, queue, offset)
            if answer.code == NOT_FOUND:
                return
            assert answer.code in (FOUND, SKIPPED, MOVED), answer
            yield from records(answer.body)
            following = int(answer.fields["nextBeginOffset"])
            if following == offset:
                return
            offset = following

    def produce(self, group: str) -> None:
        """Registers as a producer of the group: the broker asks it about its open transactions."""
        body = {"clientID": f"test@{self.port}", "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
        assert self.ask(HEARTBEAT, json.dumps(body).encode()).code == 0

    def end(self, group: str, check: Frame, outcome: int) -> None:
        """Answers a broker's check of a transaction."""
        kept = {name: check.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")}
        told = {"producerGroup": group, "commitOrRollback": outcome, "fromTransactionCheck": True}
        transaction = {"transactionId": check.fields.get("transactionId", "")}
        self.send(END_TRANSACTION, {**told, **kept, **transaction}, flag=NO_ANSWER)


def records(data: bytes) -> Iterator[Record]:
    """The records that lie back to back in an answer."""
    position = 0
    while position < len(data):
        found = record.decode(data[position : position + int.from_bytes(data[position : position + 4], "big")])
        position += found.size
        yield found
