"""Runs the audit: buckets first, then differing buckets entry by entry; then transactions and schedules."""

from collections import Counter, defaultdict
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
from duetime_format.lanes import is_timer_lane
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from duetime_spark.jobs import audit_schedules, audit_timers, audit_transactions
from duetime_spark.jobs.audit import (
    EARLY,
    ENDS,
    KINDS,
    LEFT,
    MISSING,
    RESTORED,
    UNKNOWN,
    AuditJobResult,
    AuditViolation,
    OffsetBucket,
    Proof,
    copy_buckets,
    differences,
    early,
    entry_buckets,
    firsts,
    without_brokers,
    without_left,
)
from duetime_spark.jobs.context import JobContext

_ENTRIES = "shard,topic,queue,offset,position,due_at_ms"
_COPIES = "shard,topic,position,id,real_topic,lane_level,lane_offset,lane_due_at_ms,stored_at_ms"
_BUCKET_COLUMNS = "shard,topic,lane_level,lane_offset,lane_due_at_ms,stored_at_ms"
_ENDS = "shard,level,offset,due_at_ms,end,position"
_WAITING = "shard,level,offset,position,due_at_ms"
_NAMED = "shard,topic,position,id,real_topic,lane_level,born_at_ms,body_crc,body_size,sys_flag"
_BUCKET_FIELDS = tuple(field.name for field in fields(OffsetBucket))
Lane = tuple[int, int]
Key = tuple[int, int, int]


class _Auditor:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._lanes = context.table("lanes", "shard,level,min_offset,watermark,judged_from")
        # Counts of each end and of each kind of violation, by lane.
        self.ends: dict[Lane, Counter[str]] = defaultdict(Counter)
        self.violations: list[AuditViolation] = []
        # Lanes of shards that have lost segments since the snapshot: the first entry with a copy left.
        self._firsts: dict[Lane, int] = {}
        # Entries with units in lanes for any time.
        self.entry_counts: Counter[Lane] = Counter()

    def run(self) -> AuditJobResult:
        table, lanes = self._context.table, self._lanes
        has_timers = any(is_timer_lane(lane["level"]) for lane in self._context.lanes)
        entries = {_key(row): _bucket(row) for row in entry_buckets(table("queue_entries", _ENTRIES), lanes).collect()}
        # `_copies` selects its columns by name; columns not needed for buckets are not read.
        messages = table("messages", _BUCKET_COLUMNS).withColumns({"position": F.lit(0), "id": F.lit("")})
        copies = copy_buckets(messages, table("ends", _ENDS), lanes).collect()
        if differing := _differing(entries, copies):
            agreeing = [row for row in copies if row["zone"] == "kept" and _key(row) not in differing]
            self._compare(differing, agreeing)
        for row in copies:
            ends = self.ends[row["shard"], row["level"]]
            ends[EARLY] += row["early"]
            if row["zone"] == "ahead":
                ends["ahead"] += row["count"]
                for end in ENDS:
                    ends[f"ahead {end}"] += row[end]
            elif _key(row) not in differing:
                for end in ENDS:
                    ends[f"{row['zone']} {end}"] += row[end]
        if has_timers:
            self._timers()
        if sum(ends[EARLY] for ends in self.ends.values()):
            self._list(early(table("messages", _COPIES)).withColumn("kind", F.lit(EARLY)))
        return self._result()

    def _buckets(self, keys: set[Key]) -> DataFrame:
        columns = list(zip(*sorted(keys), strict=True))
        schema = pa.schema([("shard", pa.int32()), ("level", pa.int32()), ("bucket", pa.int64())])
        return self._context.spark.createDataFrame(pa.table([pa.array(c) for c in columns], schema=schema))

    def _timers(self) -> None:
        """Lanes for any time: `ends` gets counts by end under EXPIRED, PENDING, ..., and `entry_counts`."""
        entries = {_key(row): _bucket(row) for row in audit_timers.buckets_of(self._timer_entries()).collect()}
        for (shard, level, _), one in entries.items():
            self.entry_counts[shard, level] += one.count
        found = {
            _key(row): row
            for row in audit_timers.buckets_of(self._timer_ends(), with_ends=True).collect()
            if self.entry_counts[row["shard"], row["level"]]
        }
        differing = set(entries) - {key for key, row in found.items() if _bucket(row).agrees(entries.get(key))}
        differing |= found.keys() - entries.keys()
        for key, row in found.items():
            self.ends[key[:2]][EARLY] += row["early"]
            if key not in differing:
                self.ends[key[:2]].update({end: row[end] for end in audit_timers.ALL_ENDS})
        if differing:
            self._compare_timers(differing)

    def _timer_entries(self) -> DataFrame:
        return audit_timers.entries_of(self._context.table("queue_entries", _ENTRIES), self._lanes)

    def _timer_ends(self) -> DataFrame:
        table = self._context.table
        return audit_timers.found_of(
            table("messages", _COPIES), table("ends", _ENDS), table("pending", _WAITING), self._lanes
        )

    def _compare_timers(self, differing: set[Key]) -> None:
        buckets = self._buckets(differing)
        found = audit_timers.differences(self._timer_entries(), self._timer_ends(), buckets)
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            # Missing ends may be in segments removed by retention since the snapshot.
            left, missing = sorted(self._context.left()), F.col("kind") == MISSING
            is_left = missing & F.col("shard").isin(left) if left else F.lit(False)
            kinds = found.withColumn("kind", F.when(~is_left, F.col("kind")))
            for row in kinds.groupBy("shard", "level", "kind", "end").count().collect():
                ends = self.ends[row["shard"], row["level"]]
                if row["kind"] != MISSING:
                    ends[row["end"]] += row["count"] if row["kind"] != UNKNOWN else 0
                if row["kind"]:
                    ends[row["kind"]] += row["count"]
            self._list(kinds.where(F.col("kind").isNotNull()))
        finally:
            found.unpersist()

    def _compare(self, differing: set[Key], agreeing: list[Row]) -> None:
        table = self._context.table
        buckets = self._buckets(differing)
        entries, copies, ends_ = table("queue_entries", _ENTRIES), table("messages", _COPIES), table("ends", _ENDS)
        kept = found = differences(entries, copies, ends_, self._lanes, buckets).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = self._without_left(found, agreeing)
            end = F.coalesce("end", F.lit(RESTORED))
            counted = found.groupBy("shard", "level", "zone", "kind", end.alias("end")).count().collect()
            for row in counted:
                ends = self.ends[row["shard"], row["level"]]
                if row["kind"] not in (MISSING, LEFT):
                    ends[f"{row['zone']} {row['end']}"] += row["count"]
                    ends[row["kind"] or ""] += row["count"]
            if any(row["kind"] == MISSING for row in counted):
                self._name_missing(found.where(F.col("kind") == MISSING))
            self._list(found.where(F.col("kind").isNotNull() & ~F.col("kind").isin(MISSING, LEFT)))
        finally:
            kept.unpersist()

    def _without_left(self, found: DataFrame, agreeing: list[Row]) -> DataFrame:
        """Marks entries removed by retention since the snapshot: no violation."""
        rows = {(row["shard"], row["level"]): row for row in firsts(found).collect()}
        # Determined after all reads.
        shards = self._context.left()
        columns: dict[str, list[int]] = {"shard": [], "level": [], "copy": [], "entry": []}
        for lane in self._context.lanes:
            shard, level, mark = lane["shard"], lane["level"], lane["watermark"]
            if shard in shards and not is_timer_lane(level):
                row = rows.get((shard, level))
                seen = [one["first"] for one in agreeing if (one["shard"], one["level"]) == (shard, level)]
                for name in ("copy", "entry"):
                    own = row[name] if row is not None and row[name] is not None else mark
                    columns[name].append(min([own, *seen]))
                columns["shard"].append(shard)
                columns["level"].append(level)
                self._firsts[shard, level] = columns["copy"][-1]
        if not columns["shard"]:
            return found
        kinds = {"shard": pa.int32(), "level": pa.int32(), "copy": pa.int64(), "entry": pa.int64()}
        bounds = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        return without_left(found, self._context.spark.createDataFrame(bounds))

    def _name_missing(self, missing: DataFrame) -> None:
        in_lanes, in_topics = (self._context.table("messages", _NAMED) for _ in range(2))
        named = without_brokers(missing, in_lanes, in_topics).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for row in named.groupBy("shard", "level", "by_broker").count().collect():
                ends = self.ends[row["shard"], row["level"]]
                ends["kept restored" if row["by_broker"] else MISSING] += row["count"]
            lost = named.where(~F.col("by_broker"))
            self._list(lost.withColumns({"kind": F.lit(MISSING), "stored_at_ms": F.lit(None).cast("bigint")}))
        finally:
            named.unpersist()

    def _list(self, found: DataFrame) -> None:
        names = [field.name for field in fields(AuditViolation)]
        first = (
            found.select(*names).orderBy("kind", "shard", "level", "offset").limit(self._context.listed * len(KINDS))
        )
        listed: Counter[str] = Counter()
        for row in first.collect():
            listed[row["kind"]] += 1
            if listed[row["kind"]] <= self._context.listed:
                self.violations.append(AuditViolation(**row.asDict()))

    def _result(self) -> AuditJobResult:
        lanes = [self._proof(lane) for lane in self._context.lanes]
        counts = {kind: sum(ends[kind] for ends in self.ends.values()) for kind in KINDS}
        sums = {
            field.name: sum(getattr(lane, field.name) for lane in lanes)
            for field in fields(Proof)
            if field.name not in ("shard", "level", "is_proven")
        }
        is_proven = all(lane.is_proven for lane in lanes) and not any(counts.values())
        total = Proof(shard=None, level=None, is_proven=is_proven, **sums)
        return AuditJobResult(is_proven, total, lanes, counts, self.violations)

    def _proof(self, lane: dict[str, Any]) -> Proof:
        ends = self.ends[lane["shard"], lane["level"]]
        if is_timer_lane(lane["level"]):
            return self._timer_proof(lane, ends)
        # Copies above the watermark: a crash kept them and lost an earlier one. Their entries are not pending.
        ahead = lane["max_offset"] - lane["watermark"] - lane["pending"]
        gone = sum(ends[f"expired {end}"] for end in ENDS)
        violations = sum(ends[kind] for kind in KINDS)
        seen = gone + sum(ends[f"kept {end}"] for end in ENDS) + ends[MISSING]
        # Entries removed too are in no table: all before the first remaining one.
        first = self._firsts.get((lane["shard"], lane["level"]), 0)
        left = min(max(lane["watermark"] - seen - (lane["min_offset"] - gone), 0), max(first - lane["min_offset"], 0))
        proof = Proof(
            shard=lane["shard"],
            level=lane["level"],
            accepted=lane["max_offset"],
            expired=lane["min_offset"] - gone + left,
            pending=lane["pending"],
            **{end: ends[f"kept {end}"] + ends[f"expired {end}"] + ends[f"ahead {end}"] for end in ENDS},
            missing=ends[MISSING],
            early=ends[EARLY],
            violation_count=violations,
            is_proven=False,
        )
        return replace(proof, is_proven=proof.adds_up and ahead == ends["ahead"] and not violations)

    def _timer_proof(self, lane: dict[str, Any], ends: Counter[str]) -> Proof:
        count, violations = self.entry_counts[lane["shard"], lane["level"]], sum(ends[kind] for kind in KINDS)
        if not count and lane["pending"]:
            # A broker wrote the directory last.
            none = dict.fromkeys((*ENDS, "expired", "missing", "early", "violation_count"), 0)
            pending = lane["pending"]
            return Proof(lane["shard"], lane["level"], accepted=pending, pending=pending, is_proven=True, **none)
        fields_ = audit_timers.proof_of(lane, ends, count, ends)
        proof = Proof(
            shard=lane["shard"],
            level=lane["level"],
            **fields_,
            early=ends[EARLY],
            violation_count=violations,
            is_proven=False,
        )
        return replace(proof, is_proven=proof.adds_up and not violations)


def run(context: JobContext) -> AuditJobResult:
    found = _Auditor(context).run()
    proofs, violations = audit_transactions.run(context)
    chains, broken = audit_schedules.run(context)
    is_proven = found.is_proven and all([*(one.is_proven for one in proofs), *(one.is_proven for one in chains)])
    return replace(
        found,
        is_proven=is_proven,
        transactions=proofs,
        transaction_violations=violations,
        schedules=chains,
        schedule_violations=broken,
    )


def _differing(entries: dict[Key, OffsetBucket], copies: list[Row]) -> set[Key]:
    """Buckets to compare entry by entry, in all zones."""
    differing = set(entries)
    torn = set()
    for row in copies:
        key, found = _key(row), _bucket(row)
        if row["zone"] == "kept":
            (differing.discard if found.agrees(entries.get(key)) else differing.add)(key)
        elif row["zone"] == "expired" and not found.is_whole:
            torn.add(key)
    return differing | torn


def _key(row: Row) -> Key:
    return row["shard"], row["level"], row["bucket"]


def _bucket(row: Row) -> OffsetBucket:
    return OffsetBucket(**{name: row[name] for name in _BUCKET_FIELDS})
