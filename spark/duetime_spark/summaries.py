"""Summaries of job results in the metadata database, for gateways.

backlog     as in `duetime_core.metadata.reports.condensed`
lateness    figures of all messages together
audit       figures of all lanes together; for each lane those compared with the live counters
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from duetime_core.metadata.reports import AUDIT, BACKLOG, LATENESS, condensed

if TYPE_CHECKING:
    from duetime_spark.running import JobOutcome

_TRANSACTIONS = ("accepted", "expired", "open", "committed", "rolled_back", "given_up", "ended")
_LATENESS = (
    *("count", "p50_ms", "p99_ms", "p999_ms", "max_ms", "early_count", "late_count"),
    *("late_accept", "late_scan", "late_consumer"),
)
_PROOF = ("accepted", "expired", "pending", "restored", "dead", "cancelled", "replaced", "missing", "early")


def summary_of(outcome: "JobOutcome") -> dict[str, Any]:
    """A JSON object of at most 1 MiB. Raises: InvalidArgument: it is larger."""
    return SUMMARIES[outcome.order.job](outcome)


def _backlog(outcome: "JobOutcome") -> dict[str, Any]:
    return condensed(outcome.result.to_dict())


def _lateness(outcome: "JobOutcome") -> dict[str, Any]:
    found = outcome.result.to_dict()
    total: Mapping[str, Any] = found["total"] or {}
    return {
        **{name: total.get(name, 0) for name in _LATENESS},
        "late_ms": found["late_ms"],
        "undated_count": found["undated_count"],
        "damage_count": len(outcome.findings),
    }


def _audit(outcome: "JobOutcome") -> dict[str, Any]:
    found = outcome.result.to_dict()
    violations = Counter(found["violation_counts"])
    violations["transactions"] = sum(one["violation_count"] for one in found["transactions"])
    violations["schedules"] = sum(one["violation_count"] for one in found["schedules"])
    pending = {(lane["shard"], lane["level"]): lane["pending"] for lane in found["lanes"]}
    return {
        "is_proven": found["is_proven"],
        **{name: found["total"][name] for name in _PROOF},
        "violations": {kind: count for kind, count in violations.items() if count},
        "transactions": {name: sum(one[name] for one in found["transactions"]) for name in _TRANSACTIONS},
        "lanes": [
            {
                **{name: lane[name] for name in ("shard", "level", "watermark", "max_offset")},
                "counted": pending.get((lane["shard"], lane["level"]), 0),
            }
            for lane in outcome.moment.lanes
        ],
        "damage_count": len(outcome.findings),
    }


SUMMARIES: Mapping[str, Callable[["JobOutcome"], dict[str, Any]]] = {
    BACKLOG: _backlog,
    LATENESS: _lateness,
    AUDIT: _audit,
}
