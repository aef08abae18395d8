"""Dead letters that are gone: redriven or discarded. Their records stay in %DLQ%group while the log keeps them.

    queue of %DLQ%group        min ──────────────────────────── max
    bits, from `base` on     0  1  1  0  0  1                          1: gone; none after the last one is

A redrive has two steps, like everything staged: `take` marks a dead letter as going, so that no other call takes it,
and `taken` as gone, once its copy is durable; `give_back` undoes the first. A bit costs less than a thousandth of the
dead letter itself, and is dropped when retention deletes the record.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

import numpy as np
import numpy.typing as npt
from duetime_format.errors import DamagedBytes

Ints = npt.NDArray[np.int64]
# Topic, queue on the shard, offset.
Place = tuple[str, int, int]

_HEAD = Struct(">BiqI")  # topic's length, queue, base, bytes of bits


@dataclass(slots=True)
class _Bits:
    """The bits of one queue: bit n of byte m stands for offset base + 8 m + n."""

    base: int
    bits: bytearray = field(default_factory=bytearray)
    count: int = 0

    def set(self, offset: int) -> None:
        if offset < self.base:
            base = offset & ~7
            self.bits[:0] = bytes((self.base - base) >> 3)
            self.base = base
        at = (offset - self.base) >> 3
        if at >= len(self.bits):
            self.bits.extend(bytes(at + 1 - len(self.bits)))
        bit = 1 << (offset & 7)
        self.count += not self.bits[at] & bit
        self.bits[at] |= bit

    def clear(self, offset: int) -> None:
        if self.holds(offset):
            self.bits[(offset - self.base) >> 3] &= ~(1 << (offset & 7))
            self.count -= 1

    def holds(self, offset: int) -> bool:
        at = (offset - self.base) >> 3
        return 0 <= at < len(self.bits) and bool(self.bits[at] >> (offset & 7) & 1)

    def keep(self, first: int, stop: int) -> None:
        """Drops all offsets except [first, stop), and those in the byte of `first`."""
        if first > self.base:
            base = first & ~7
            del self.bits[: (base - self.base) >> 3]
            self.base = base
        at = max(stop - self.base, 0)
        if at >> 3 < len(self.bits):
            del self.bits[(at >> 3) + 1 :]
            self.bits[-1] &= (1 << (at & 7)) - 1
        self.count = int(np.bitwise_count(np.frombuffer(self.bits, np.uint8)).sum())


class GoneDeadLetters:
    """The gone dead letters of all %DLQ% queues of a shard. Places are as on the shard."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], _Bits] = {}
        self._going: set[Place] = set()

    def take(self, place: Place) -> bool:
        """Marks a dead letter as going. False: it is already gone or going, and another caller's."""
        if self.is_ending(place):
            return False
        self._going.add(place)
        return True

    def taken(self, places: Iterable[Place]) -> None:
        """Marks dead letters as gone: durable, or read by recovery."""
        for topic, queue, offset in places:
            self._going.discard((topic, queue, offset))
            bits = self._queues.get((topic, queue))
            if bits is None:
                bits = self._queues[topic, queue] = _Bits(offset & ~7)
            bits.set(offset)

    def left(self, places: Iterable[Place]) -> None:
        """Marks dead letters as present again: the record to end them was not stored."""
        for topic, queue, offset in places:
            bits = self._queues.get((topic, queue))
            if bits is not None:
                bits.clear(offset)

    def give_back(self, place: Place) -> None:
        """Unmarks a dead letter that was going."""
        self._going.discard(place)

    def is_ending(self, place: Place) -> bool:
        """Whether it is gone or going."""
        return place in self._going or self.is_gone(place)

    def is_gone(self, place: Place) -> bool:
        bits = self._queues.get(place[:2])
        return bits is not None and bits.holds(place[2])

    def among(self, topic: str, queue: int, offsets: Ints) -> npt.NDArray[np.bool_]:
        """Mask of the offsets that are gone or going."""
        found = np.zeros(len(offsets), np.bool_)
        bits = self._queues.get((topic, queue))
        if bits is not None and bits.bits:
            at = offsets - bits.base
            inside = (at >= 0) & (at < len(bits.bits) * 8)
            at = at[inside]
            found[inside] = np.frombuffer(bits.bits, np.uint8)[at >> 3] >> (at & 7).astype(np.uint8) & 1
        if self._going:
            found |= [(topic, queue, offset) in self._going for offset in offsets.tolist()]
        return found

    def count(self, topic: str, queue: int, min_offset: int, max_offset: int) -> int:
        """The number of gone dead letters of a queue."""
        self.keep(topic, queue, min_offset, max_offset)
        bits = self._queues.get((topic, queue))
        if bits is None:
            return 0
        deleted = bits.bits[0] & (1 << max(min_offset - bits.base, 0)) - 1
        return bits.count - deleted.bit_count()

    def queues(self) -> list[tuple[str, int]]:
        return list(self._queues)

    def keep(self, topic: str, queue: int, min_offset: int, max_offset: int) -> None:
        """Drops offsets outside the queue: deleted by retention, or taken back by a crash."""
        bits = self._queues.get((topic, queue))
        if bits is not None and (bits.base < min_offset & ~7 or bits.base + len(bits.bits) * 8 > max_offset):
            bits.keep(min_offset, max_offset)
            if not bits.count:
                del self._queues[topic, queue]

    def encode(self) -> bytes:
        """The gone dead letters, for the snapshot; those only going are omitted.

        For each queue: | topic's length u8 | queue i32 | base i64 | bytes of bits u32 | topic | bits |
        """
        parts: list[bytes] = []
        for (topic, queue), bits in sorted(self._queues.items()):
            name = topic.encode()
            parts += (_HEAD.pack(len(name), queue, bits.base, len(bits.bits)), name, bytes(bits.bits))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "GoneDeadLetters":
        """Raises: DamagedBytes."""
        gone, at = cls(), 0
        try:
            while at < len(data):
                name_bytes, queue, base, bit_bytes = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                name, bits = data[at : at + name_bytes], data[at + name_bytes : at + name_bytes + bit_bytes]
                at += name_bytes + bit_bytes
                if base < 0 or base & 7 or not bits or at > len(data):
                    raise DamagedBytes(f"dead letters from offset {base} on, {bit_bytes} bytes of bits: no such part")
                count = int(np.bitwise_count(np.frombuffer(bits, np.uint8)).sum())
                gone._queues[name.decode(), queue] = _Bits(base, bytearray(bits), count)
        except (struct.error, UnicodeDecodeError) as error:
            raise DamagedBytes(f"cannot read the gone dead letters: {error}") from error
        return gone
