"""Snapshots of all sources, taken before Spark starts so that faults in them are reported at once."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duetime_format.levels import DEFAULT_DELAY_LEVELS

_DIGEST_CHARS = 12


@dataclass(frozen=True)
class Moment:
    """Snapshots of all shards; `text` is a value for the data source's option `snapshot`."""

    sources: tuple[str, ...]
    levels: str
    text: str
    shards: tuple[dict[str, Any], ...]

    @property
    def at_ms(self) -> int:
        """Store time of the newest record of all shards; 0 without records."""
        return max((shard["stored_at_ms"] for shard in self.shards), default=0)

    @property
    def id(self) -> str:
        """Equal for equal state of the same shards, independent of the place and number of reads."""
        state = sorted((one["shard"], one["end"], one["stored_at_ms"], _marks(one)) for one in self.shards)
        return f"{self.at_ms}-{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:_DIGEST_CHARS]}"

    @property
    def day(self) -> str:
        """The UTC day, as `2026-01-31`."""
        return f"{datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d}"

    @property
    def lanes(self) -> list[dict[str, Any]]:
        """The rows of table `lanes`, by shard and level."""
        from duetime_spark.shards.snapshot import ShardSnapshot
        from duetime_spark.tables.snapshot_tables import lane_rows

        rows = [row for shard in self.shards for row in lane_rows(ShardSnapshot.from_dict(shard))]
        return sorted(rows, key=lambda row: (row["shard"], row["level"]))

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [{"shard": shard["shard"], **found} for shard in self.shards for found in shard["findings"]]

    def left(self) -> frozenset[int]:
        """Shards whose logs have lost their oldest part to retention since the snapshot."""
        from duetime_spark.shards.files import open_source

        found = set()
        files = [shard for source in self.sources for shard in open_source(source)]
        for one, shard in zip(files, self.shards, strict=True):
            bases = [int(name) for name, _ in one.listed("commitlog") if name.isdigit()]
            one.close()
            if min(bases, default=0) > shard["min_position"]:
                found.add(shard["shard"])
        return frozenset(found)

    def to_dict(self) -> dict[str, Any]:
        shards = [
            {"shard": one["shard"], "name": one["name"], "position": one["end"], "at_ms": one["stored_at_ms"]}
            for one in self.shards
        ]
        return {"snapshot_id": self.id, "snapshot_at_ms": self.at_ms, "shards": shards}


def _marks(shard: dict[str, Any]) -> list[list[int]]:
    return [[lane["level"], lane["watermark"], lane["max_offset"], lane["pending"]] for lane in shard["lanes"]]


def take_moment(sources: Sequence[str], levels: str = DEFAULT_DELAY_LEVELS) -> Moment:
    """Takes a snapshot of every shard.

    Raises:
        InvalidArgument: a source is not a store, or the level table is invalid.
        Unavailable: a store does not answer.
    """
    from duetime_spark.shards.snapshot import take_snapshots

    # Workers run in another folder.
    named = [source if "://" in source else str(Path(source).absolute()) for source in sources]
    text = take_snapshots(named, levels)
    return Moment(tuple(named), levels, text, tuple(json.loads(text)["shards"]))
