"""Ends of transactions and what became of them, as columns: a request ends thousands. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duetime.v1 import transactions_pb2 as pb

from duetime_gateway.transactions.names import TransactionName

Result = pb.EndTransactionResult

# In place of a shard or an offset.
NOWHERE = -1
_NO_NAME = TransactionName(NOWHERE, 0, 0, "")


@dataclass(slots=True)
class Ends:
    """What is to become of transactions: their names, and one of `ending.Decision`, once it is checked."""

    # NOWHERE: what the caller has given names no transaction.
    shards: list[int]
    offsets: list[int]
    positions: list[int]
    ids: list[str]
    decisions: list[int]

    @classmethod
    def of(cls, ends: Iterable[tuple[TransactionName | None, int]]) -> "Ends":
        rows = [(*(name or _NO_NAME), decision) for name, decision in ends]
        return cls(*([row[column] for row in rows] for column in range(5)))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.shards)

    def only(self, chosen: Sequence[int]) -> "Ends":
        """Some of them."""
        columns = (self.shards, self.offsets, self.positions, self.ids, self.decisions)
        return Ends(*([column[index] for index in chosen] for column in columns))  # type: ignore[arg-type]

    def add(self, others: "Ends") -> None:
        """Adds others at the end."""
        self.shards += others.shards
        self.offsets += others.offsets
        self.positions += others.positions
        self.ids += others.ids
        self.decisions += others.decisions


@dataclass(slots=True)
class Ended:
    """What became of transactions."""

    # The state after the call; 0: it has a fault.
    states: list[int]
    # Where committed messages without a delay are: topic, queue and offset, which is NOWHERE for all others.
    topics: list[str]
    queues: list[int]
    offsets: list[int]
    # Whole results of those of which there is more to say, by index.
    others: dict[int, Result]

    @classmethod
    def of_nothing(cls, count: int) -> "Ended":
        return cls([0] * count, [""] * count, [0] * count, [NOWHERE] * count, {})

    def part(self, first: int, stop: int) -> "Ended":
        """Of the ends [first, stop)."""
        others = {index - first: one for index, one in self.others.items() if first <= index < stop}
        return Ended(
            *(self.states[first:stop], self.topics[first:stop], self.queues[first:stop], self.offsets[first:stop]),
            others,
        )

    def put(self, indices: Sequence[int], part: "Ended") -> None:
        """What became of some."""
        rows = zip(indices, part.states, part.topics, part.queues, part.offsets, strict=True)
        for index, state, topic, queue, offset in rows:
            self.states[index], self.topics[index] = state, topic
            self.queues[index], self.offsets[index] = queue, offset
        self.others.update((indices[index], one) for index, one in part.others.items())
