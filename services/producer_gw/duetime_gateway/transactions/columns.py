"""Ends of transactions and their results, as columns: a request has thousands. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duetime.v1 import transactions_pb2 as pb

from duetime_gateway.transactions.names import TransactionName

Result = pb.EndTransactionResult

# Placeholder for a shard or an offset.
NOWHERE = -1
_NO_NAME = TransactionName(NOWHERE, 0, 0, "")


@dataclass(slots=True)
class EndColumns:
    """Transactions to end: their names, and for each a checked `ending.Decision`."""

    # Shard by transaction; NOWHERE: the caller's text is not a transaction's name.
    shards: list[int]
    offsets: list[int]
    positions: list[int]
    ids: list[str]
    decisions: list[int]

    @classmethod
    def of(cls, ends: Iterable[tuple[TransactionName | None, int]]) -> "EndColumns":
        rows = [(*(name or _NO_NAME), decision) for name, decision in ends]
        return cls(*([row[column] for row in rows] for column in range(5)))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.shards)

    def only(self, chosen: Sequence[int]) -> "EndColumns":
        """The ends with these indices."""
        columns = (self.shards, self.offsets, self.positions, self.ids, self.decisions)
        return EndColumns(*([column[index] for index in chosen] for column in columns))  # type: ignore[arg-type]

    def add(self, others: "EndColumns") -> None:
        """Appends others."""
        self.shards += others.shards
        self.offsets += others.offsets
        self.positions += others.positions
        self.ids += others.ids
        self.decisions += others.decisions


@dataclass(slots=True)
class EndResultColumns:
    """Results of ended transactions."""

    # State after the call; 0: a fault.
    states: list[int]
    # Topic, queue and offset of committed messages without a delay; the offset of all others is NOWHERE.
    topics: list[str]
    queues: list[int]
    offsets: list[int]
    # Complete results that need more than the columns, by index.
    others: dict[int, Result]

    @classmethod
    def of_nothing(cls, count: int) -> "EndResultColumns":
        return cls([0] * count, [""] * count, [0] * count, [NOWHERE] * count, {})

    def part(self, first: int, stop: int) -> "EndResultColumns":
        """The results of the ends [first, stop)."""
        others = {index - first: one for index, one in self.others.items() if first <= index < stop}
        return EndResultColumns(
            *(self.states[first:stop], self.topics[first:stop], self.queues[first:stop], self.offsets[first:stop]),
            others,
        )

    def put(self, indices: Sequence[int], part: "EndResultColumns") -> None:
        """Sets the results at these indices."""
        rows = zip(indices, part.states, part.topics, part.queues, part.offsets, strict=True)
        for index, state, topic, queue, offset in rows:
            self.states[index], self.topics[index] = state, topic
            self.queues[index], self.offsets[index] = queue, offset
        self.others.update((indices[index], one) for index, one in part.others.items())
