"""Topics and their routes in the database, many per statement.

Rows are passed as one JSON text, which SQLite and PostgreSQL parse themselves: a thousand topics block this process's
event loop for some milliseconds instead of some hundred.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from duetime_format.names import DLQ_PREFIX, RETRY_PREFIX
from sqlalchemy import TextClause, case, func, or_, select, text
from sqlalchemy.orm import Session

from duetime_core.metadata.models import TopicGenerationModel, TopicModel, table_of

_FOUND = """
SELECT topics.name, topics.created_at_ms, topics.max_delay_ms, topics.message_type,
topics.generation, topics.is_deleting, topic_queues.shard, topic_queues.queue, topic_queues.shard_queue
FROM topics JOIN topic_queues ON topic_queues.topic = topics.name
WHERE topics.name IN (SELECT {names}) ORDER BY topics.name, topic_queues.queue
"""
_MADE = """
INSERT INTO topics (name, queue_count, max_delay_ms, message_type, owner, created_at_ms, generation)
SELECT {columns}, :created_at_ms, :generation FROM {wanted}
ON CONFLICT DO NOTHING RETURNING name
"""
_QUEUES = "INSERT INTO topic_queues (topic, queue, shard) SELECT {columns} FROM {made}"


class _Statements(NamedTuple):
    find: TextClause
    make: TextClause
    queues: TextClause


# `wanted` and `made` are [[name, [shard, ...], max_delay_ms, message_type, owner], ...].
_SQLITE = _Statements(
    text(_FOUND.format(names="value FROM json_each(:names)")),
    # Without a WHERE, ON would belong to a join.
    text(
        _MADE.format(
            columns="json_extract(value, '$[0]'), json_array_length(value, '$[1]'), json_extract(value, '$[2]'), "
            "json_extract(value, '$[3]'), json_extract(value, '$[4]')",
            wanted="json_each(:wanted) WHERE true",
        )
    ),
    text(
        _QUEUES.format(
            columns="json_extract(one.value, '$[0]'), shards.key, shards.value",
            made="json_each(:made) AS one, json_each(one.value, '$[1]') AS shards",
        )
    ),
)
_POSTGRESQL = _Statements(
    text(_FOUND.format(names="json_array_elements_text(CAST(:names AS json))")),
    text(
        _MADE.format(
            columns="value ->> 0, json_array_length(value -> 1), CAST(value ->> 2 AS bigint), "
            "CAST(value ->> 3 AS integer), value ->> 4",
            wanted="json_array_elements(CAST(:wanted AS json))",
        )
    ),
    text(
        _QUEUES.format(
            columns="one.value ->> 0, shards.number - 1, CAST(shards.shard AS integer)",
            made="json_array_elements(CAST(:made AS json)) AS one(value), "
            "json_array_elements_text(one.value -> 1) WITH ORDINALITY AS shards(shard, number)",
        )
    ),
)


class DatabaseTopic(NamedTuple):
    """A topic: its creation time, shard and its queue for each of its queues, and the longest delay of its messages."""

    created_at_ms: int
    places: Sequence[tuple[int, int]]
    # 0: ten years.
    max_delay_ms: int = 0
    # A number of duetime.v1.TopicType.
    message_type: int = 0
    # Higher than that of a deleted topic of its name.
    generation: int = 0
    # Being deleted, must not be used.
    is_deleting: bool = False


def find_topics(session: Session, names: Iterable[str]) -> dict[str, DatabaseTopic]:
    """The topics found."""
    rows = session.execute(_statements(session).find, {"names": json.dumps(list(names))})
    found: dict[str, DatabaseTopic] = {}
    for name, created_at_ms, max_delay_ms, message_type, generation, is_deleting, shard, queue, shard_queue in rows:
        stored = found.get(name)
        if stored is None:
            stored = found[name] = DatabaseTopic(
                created_at_ms, [], max_delay_ms, message_type, generation, bool(is_deleting)
            )
        assert isinstance(stored.places, list)
        stored.places.append((shard, queue if shard_queue is None else shard_queue))
    return found


def make_topics(
    session: Session,
    wanted: Mapping[str, Sequence[int]],
    created_at_ms: int,
    max_delays_ms: Mapping[str, int] = MappingProxyType({}),
    types: Mapping[str, int] = MappingProxyType({}),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, DatabaseTopic]:
    """Creates topics from the shards of their queues, and optional longest delays, types and owners. Returns all of
    them as they are then, including those created by others first."""
    if not wanted:
        return {}
    statements = _statements(session)
    # Sorted: processes that create the same topics in different orders would deadlock.
    rows = [
        (name, wanted[name], max_delays_ms.get(name, 0), types.get(name, 0), owners.get(name, ""))
        for name in sorted(wanted)
    ]
    generation = generation_of(session)
    values = {"wanted": json.dumps(rows), "created_at_ms": created_at_ms, "generation": generation}
    made = set(session.scalars(statements.make, values))
    session.execute(statements.queues, {"made": json.dumps([row for row in rows if row[0] in made])})
    found = find_topics(session, wanted.keys() - made) if len(made) < len(wanted) else {}
    for name in made:
        places = [(shard, queue) for queue, shard in enumerate(wanted[name])]
        found[name] = DatabaseTopic(created_at_ms, places, max_delays_ms.get(name, 0), types.get(name, 0), generation)
    return found


# Every gateway reads it each second.
_READ_GENERATION = select(table_of(TopicGenerationModel).c.generation)


def generation_of(session: Session) -> int:
    """The generation of new topics. It increases with each deletion."""
    return session.scalar(_READ_GENERATION) or 0


def raise_generation(session: Session, least: int = 0) -> None:
    """Increases the generation of new topics, at least to `least`."""
    row = session.get(TopicGenerationModel, 1, with_for_update=True)
    if row is None:
        row = TopicGenerationModel(id=1, generation=0)
        session.add(row)
    row.generation = max(row.generation + 1, least)


class OwnerUsage(NamedTuple):
    """The number of topics and queues of one caller."""

    owner: str
    topics: int
    queues: int


def holdings(session: Session, owners: Collection[str]) -> list[OwnerUsage]:
    """Topics and queues of each owner; those of all others are a nameless one's. Topics of groups do not count: stores
    have room for them."""
    owner = case((TopicModel.owner.in_(owners), TopicModel.owner), else_="").label("holder")
    of_groups = or_(*(TopicModel.name.startswith(prefix, autoescape=True) for prefix in (RETRY_PREFIX, DLQ_PREFIX)))
    query = select(owner, func.count(), func.sum(TopicModel.queue_count)).where(~of_groups).group_by("holder")
    return [OwnerUsage(name, count, int(queues)) for name, count, queues in session.execute(query)]


def _statements(session: Session) -> _Statements:
    return _SQLITE if session.connection().dialect.name == "sqlite" else _POSTGRESQL
