"""Inputs made of a target's seeds: the same ones for the same seed, without any library."""

import random
from collections.abc import Callable, Iterator, Sequence

from tests.fuzz.target import Target

INPUT_BYTES_MAX = 1 << 16
# Numbers that lie at bounds, in the widths of the format's fields.
_NUMBERS = [0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, (1 << 63) - 1]
_FIELDS = [(number & ((1 << 8 * width) - 1)).to_bytes(width, "big") for width in (1, 2, 4, 8) for number in _NUMBERS]
_TEXTS = [b"\x01", b"\x02", b"\xff", b"\xed\xa0\x80", "\N{SUPERSCRIPT TWO}".encode(), b"1e999", b"-1", b"9" * 20]


class Mutator:
    """Makes inputs for one target, from its seeds and from each other."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        self._chance = random.Random(f"{target.name} {seed}")
        self._pool: list[bytes] = list(target.seeds) or [b""]
        self._seeds = len(self._pool)
        self._own, self._words = list(target.words), [*_FIELDS, *_TEXTS]
        self._ways: Sequence[Callable[[bytearray], None]] = (
            self._flip,
            self._flip,
            self._set,
            self._word,
            self._word,
            self._cut,
            self._drop,
            self._double,
            self._splice,
        )

    def inputs(self, count: int) -> Iterator[bytes]:
        """The seeds as they are, then mutations."""
        yield from self._pool[: min(count, self._seeds)]
        for _ in range(count - self._seeds):
            yield self._next()

    def _next(self) -> bytes:
        chance = self._chance
        data = bytearray(chance.choice(self._pool))
        for _ in range(1 << chance.randrange(4)):
            chance.choice(self._ways)(data)
        found = bytes(data[:INPUT_BYTES_MAX])
        # Some are built upon, so that inputs get far from the seeds.
        if chance.random() < 0.01:
            if len(self._pool) < self._seeds + 64:
                self._pool.append(found)
            else:
                self._pool[chance.randrange(self._seeds, len(self._pool))] = found
        return found

    def _at(self, data: bytearray) -> int:
        return self._chance.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _set(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] = self._chance.randrange(256)

    def _word(self, data: bytearray) -> None:
        words = self._own if self._own and self._chance.random() < 0.5 else self._words
        word, at = self._chance.choice(words), self._at(data)
        # Replace or insert.
        data[at : at + len(word) * self._chance.randrange(2)] = word

    def _cut(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _drop(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + self._chance.randrange(1, 16)]

    def _double(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = data[at : at + self._chance.randrange(1, 64)]

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._pool)
        data[self._at(data) :] = other[self._chance.randrange(len(other) + 1) :]
