"""Grafana's dashboards as code: `python deploy/observability/dashboards.py` writes grafana/dashboards/*.json.

A dashboard has rows of panels; a panel has a title and queries. `bench/dashboards.py` draws the same panels without
Grafana.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "duetime"}
WIDTH = 24
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries (PromQL and legend) under a title; `unit` is Grafana's. A `stat` shows the last value, in red if bad."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    text: str = ""
    red_above: float | None = None


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels that share the width; stats have half the height."""

    name: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]


def panel(title: str, *queries: str | tuple[str, str], unit: str = "short", text: str = "") -> Panel:
    """A graph; a query without a legend has one line."""
    return Panel(title, tuple((q, "") if isinstance(q, str) else q for q in queries), unit, text=text)


def stat(title: str, query: str, unit: str = "short", red_above: float | None = None, text: str = "") -> Panel:
    return Panel(title, ((query, ""),), unit, "stat", text, red_above)


def quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """p50, p99 and p99.9 of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{RATE})))", name + legend)
        for q, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
    )


def by_process(query: str) -> tuple[str, str]:
    """One line for each process."""
    return f"sum by (job, instance) ({query})", "{{job}} {{instance}}"


def by_lane(aggregate: str, metric: str) -> tuple[tuple[str, str], ...]:
    """One line for each level, and one for all lanes for any time (numbers from 1000)."""
    return (
        (f'{aggregate} by (lane) ({metric}{{lane!~"1\\\\d{{3}}"}})', "level {{lane}}"),
        (f'{aggregate}({metric}{{lane=~"1\\\\d{{3}}"}})', "any time"),
    )


OVERVIEW = Dashboard(
    "overview",
    "DueTime: overview",
    (
        (
            stat("Pending", "sum(duetime_store_lane_pending_count)", text="Messages that are not due yet: exact."),
            stat("Overdue for", "max(duetime_store_lane_overdue_ms)", "ms", 1_000),
            stat("Durable late, p99", quantiles("duetime_store_lane_late_ms")[1][0].replace(RATE, "[5m]"), "ms", 500),
            stat("Lanes unpolled for 30 s", "count(duetime_store_lane_unasked_seconds > 30) or vector(0)", red_above=0),
            stat(
                "Stores that reject sends",
                "count(max by (instance) (duetime_store_refusing) == 1) or vector(0)",
                red_above=0,
            ),
            stat("Dead letters", "sum(duetime_store_dead_letters) or vector(0)"),
        ),
        (
            panel(
                "Messages per second",
                (f"sum by (outcome) (rate(duetime_gateway_messages_total{RATE}))", "sent: {{outcome}}"),
                (f"sum(rate(duetime_store_lane_restored_total{RATE}))", "restored"),
                (f'sum(rate(duetime_gateway_receipts_total{{call="Ack"}}{RATE}))', "acknowledged"),
            ),
            panel("Delivered messages, durable late", *quantiles("duetime_store_lane_late_ms"), unit="ms"),
        ),
        (
            panel("Pending by lane", *by_lane("sum", "duetime_store_lane_pending_count")),
            panel("Overdue by lane", *by_lane("max", "duetime_store_lane_overdue_ms"), unit="ms"),
        ),
        (
            panel(
                "Due within",
                *(
                    (f'sum(duetime_store_lane_due_count{{within="{within}"}})', within)
                    for within in ("1s", "10s", "1m", "10m", "1h", "1d")
                ),
                text="Pending messages by due time; overdue ones are in all lines.",
            ),
            panel(
                "Cancelled, rescheduled, replaced per second",
                (f"sum by (result) (rate(duetime_store_cancels_total{RATE}))", "cancel: {{result}}"),
                (f"sum by (result) (rate(duetime_store_reschedules_total{RATE}))", "reschedule: {{result}}"),
                (f"sum by (result) (rate(duetime_store_replaces_total{RATE}))", "replace: {{result}}"),
                (f"sum by (result) (rate(duetime_store_occurrences_total{RATE}))", "occurrence: {{result}}"),
                (f"sum(rate(duetime_store_occurrences_moved_total{RATE}))", "occurrence: moved by its time zone"),
                text="Changes of pending messages, and due occurrences of schedules, by result.",
            ),
        ),
        (
            panel(
                "Open transactions",
                ("sum(duetime_store_transactions_open)", "open"),
                ("max(duetime_store_transactions_oldest_seconds)", "age of the oldest, s"),
                text="Prepared, and neither committed nor rolled back.",
            ),
            panel(
                "Transactions and their checks per second",
                (f"sum by (result) (rate(duetime_store_prepares_total{RATE}))", "prepare: {{result}}"),
                (
                    f"sum by (decision, result) (rate(duetime_store_transaction_ends_total{RATE}))",
                    "{{decision}}: {{result}}",
                ),
                (f"sum by (result) (rate(duetime_store_transaction_checks_total{RATE}))", "check: {{result}}"),
                (f"sum(rate(duetime_store_transactions_given_up_total{RATE}))", "given up"),
            ),
        ),
        (
            panel(
                "Burn rate of the lateness budget",
                ("duetime:late_messages:ratio_rate5m / 0.005", "5 min"),
                ("duetime:late_messages:ratio_rate1h / 0.005", "1 h"),
                ("duetime:late_messages:ratio_rate6h / 0.005", "6 h"),
                text="1: the month's budget lasts a month. 14.4 over 1 h pages.",
            ),
            panel(
                "Lanes and their schedulers",
                ("sum by (instance) (duetime_scheduler_served_lanes)", "served by {{instance}}"),
                ("sum(duetime_scheduler_lanes_without_lease)", "without a lease"),
                ("max(duetime_scheduler_unowned_lanes)", "without an owner"),
                ("max(duetime_scheduler_paused_lanes)", "paused"),
            ),
        ),
    ),
)

STORES = Dashboard(
    "stores",
    "DueTime: stores",
    (
        (
            stat("Read-only stores", "sum(duetime_store_read_only)", red_above=0),
            stat("Disk in use", "max(duetime_store_disk_used_ratio)", "percentunit", 0.85),
            stat("Damaged records", "sum(duetime_store_records_damaged_total)", red_above=0),
            stat("Clock behind", "max(duetime_store_clock_behind_ms)", "ms", 0),
        ),
        (
            panel("Write and flush", *quantiles("duetime_store_flush_seconds", "instance"), unit="s"),
            panel(
                "Messages per flush",
                (
                    f"sum by (instance) (rate(duetime_store_flush_messages_sum{RATE})) "
                    f"/ sum by (instance) (rate(duetime_store_flush_messages_count{RATE}))",
                    "{{instance}}",
                ),
            ),
        ),
        (
            panel(
                "Bytes per second",
                (f"sum by (instance) (rate(duetime_store_bytes_in_total{RATE}))", "in {{instance}}"),
                (f"sum by (instance, call) (rate(duetime_store_bytes_out_total{RATE}))", "{{call}} {{instance}}"),
                (f"sum by (instance) (rate(duetime_store_export_bytes_total{RATE}))", "export {{instance}}"),
                unit="Bps",
            ),
            panel(
                "Log and disk",
                ("sum by (instance) (duetime_store_log_bytes)", "log {{instance}}"),
                ("min by (instance) (duetime_store_disk_free_bytes)", "free {{instance}}"),
                unit="bytes",
            ),
        ),
        (
            panel(
                "Errors and rejections",
                (f"sum by (instance, errno) (rate(duetime_store_flush_errors_total{RATE}))", "{{errno}} {{instance}}"),
                (f"sum by (status) (rate(duetime_store_records_refused_total{RATE}))", "{{status}}"),
                ("max by (reason) (duetime_store_refusing)", "rejects: {{reason}}"),
            ),
            panel(
                "Retention and checkpoints",
                (
                    f"sum by (instance) (rate(duetime_store_checkpoint_seconds_sum{RATE}))",
                    "checkpoint s/s {{instance}}",
                ),
                (f"sum by (reason) (rate(duetime_store_retention_segments_total{RATE}))", "files deleted: {{reason}}"),
                (f"sum(rate(duetime_store_retention_moved_total{RATE}))", "records appended again"),
            ),
        ),
        (
            panel(
                "Sorted files of lanes for any time",
                ("sum by (instance, lane) (duetime_store_order_runs)", "lane {{lane}} {{instance}}"),
                text="About ten for 10 million messages. If the number only grows, merges fail.",
            ),
            panel("Their size", by_process("duetime_store_order_bytes"), unit="bytes"),
        ),
        (
            panel("Copies: leader of a shard; 0: none", ("max by (shard) (duetime_store_copy_leader)", "{{shard}}")),
            panel("Copies: entries behind", ("max by (copy) (duetime_store_copy_behind_entries)", "{{copy}}")),
            panel("Copies: clocks", ("avg by (copy) (duetime_store_copy_clock_ahead_seconds)", "{{copy}}"), unit="s"),
        ),
    ),
)

GROUPS = Dashboard(
    "groups",
    "DueTime: consuming",
    (
        (
            stat("Outstanding", "sum(duetime_store_outstanding_messages)"),
            stat(
                "Of leases_max",
                "max(duetime_store_outstanding_messages / duetime_store_outstanding_max_messages)",
                "percentunit",
                0.9,
            ),
            stat("Lost", "sum(duetime_store_lost_outstanding_messages_total)", red_above=0),
            stat("Quarantined", "sum(duetime_store_quarantined_total)", red_above=0),
        ),
        (
            panel(
                "Messages per second",
                (f"sum by (call) (rate(duetime_store_messages_out_total{RATE}))", "sent: {{call}}"),
                (f"sum by (call) (rate(duetime_gateway_receipts_total{RATE}))", "{{call}}"),
            ),
            panel("Outstanding by shard", ("sum by (instance) (duetime_store_outstanding_messages)", "{{instance}}")),
        ),
        (
            panel(
                "Failed messages per second",
                (f"sum by (way) (rate(duetime_retry_retries_total{RATE}))", "redelivered: {{way}}"),
                (f"sum by (reason) (rate(duetime_retry_dead_letters_total{RATE}))", "dead: {{reason}}"),
                (f"sum(rate(duetime_retry_exhausted_total{RATE}))", "last lease ended"),
                (f"sum by (reason) (rate(duetime_retry_faults_total{RATE}))", "retry faults: {{reason}}"),
            ),
            panel("Dead letters by group", ("sum by (group) (duetime_store_dead_letters)", "{{group}}")),
        ),
        (
            panel(
                "Waiting retries by group",
                ("sum by (group) (duetime_store_waiting_retries)", "{{group}}"),
                text="Failed messages that wait for their next attempt: exact.",
            ),
            panel(
                "Acknowledged per second, by group",
                (f"sum by (group) (rate(duetime_store_acknowledged_total{RATE}))", "{{group}}"),
            ),
        ),
        (
            panel("Parked messages by group", ("sum by (group) (duetime_store_group_parked_messages)", "{{group}}")),
            panel("Held by rates", (f"rate(duetime_store_group_held_seconds_total{RATE})", "{{group}} {{instance}}")),
            panel("Parts of rates", ("duetime_store_group_rate_share", "{{group}} {{topic}} {{instance}}")),
        ),
        (
            panel(
                "Requests of webhooks per second",
                (
                    f"sum by (webhook, outcome) (rate(duetime_webhooks_requests_total{RATE}))",
                    "{{webhook}}: {{outcome}}",
                ),
            ),
            panel("Requests of webhooks, seconds", *quantiles("duetime_webhooks_request_seconds", "webhook"), unit="s"),
            panel("Webhooks that wait for memory", ("duetime_webhooks_waiting_for_memory", "{{instance}}")),
        ),
    ),
)

PROCESSES = Dashboard(
    "processes",
    "DueTime: processes and calls",
    (
        (
            stat("Processes", "count(duetime_build_info)"),
            stat("Not answering", 'count(up{job=~"duetime-.*"} == 0) or vector(0)', red_above=0),
            stat("Without the database", "count(duetime_metadata_up == 0) or vector(0)", red_above=0),
            stat(
                "Failed calls",
                '(sum(rate(duetime_calls_total{code!~"OK|CANCELLED|NOT_FOUND"}[5m])) or vector(0)) '
                "/ sum(rate(duetime_calls_total[5m]))",
                "percentunit",
                0.05,
            ),
        ),
        (
            panel(
                "Calls per second", (f"sum by (job, method) (rate(duetime_calls_total{RATE}))", "{{job}} {{method}}")
            ),
            panel(
                "Calls, p99",
                (
                    f"histogram_quantile(0.99, sum by (le, job, method) (rate(duetime_call_seconds_bucket{RATE})))",
                    "{{job}} {{method}}",
                ),
                unit="s",
                text="Receive, Pull, PullDue and AwaitMessages wait for messages, TakeChecks for checks.",
            ),
        ),
        (
            panel(
                "Failed calls per second",
                (
                    f'sum by (job, method, code) (rate(duetime_calls_total{{code!~"OK|CANCELLED"}}{RATE}))',
                    "{{job}} {{method}} {{code}}",
                ),
            ),
            panel("Calls in flight", by_process("duetime_calls_in_flight")),
        ),
        (
            panel(
                "Processors",
                by_process(f'rate(process_cpu_seconds_total{{job=~"duetime-.*"}}{RATE})'),
                text="1: one whole processor.",
            ),
            panel("Memory", by_process('process_resident_memory_bytes{job=~"duetime-.*"}'), unit="bytes"),
        ),
        (
            panel(
                "Longest pauses of the garbage collector (p99.9)",
                (
                    f"histogram_quantile(0.999, sum by (le, job) (rate(duetime_gc_pause_seconds_bucket{RATE})))",
                    "{{job}}",
                ),
                unit="s",
            ),
            panel(
                "Schedulers' puts, p99",
                (
                    f"histogram_quantile(0.99, sum by (le, shard) (rate(duetime_scheduler_put_seconds_bucket{RATE})))",
                    "shard {{shard}}",
                ),
                unit="s",
            ),
            panel(
                "Processes by gRPC server", ("count by (version, front) (duetime_build_info)", "{{version}} {{front}}")
            ),
        ),
    ),
)

CALLERS = Dashboard(
    "callers",
    "DueTime: callers",
    (
        (
            stat("Users", "max(duetime_gateway_users)"),
            stat("Age of the rights", "max(duetime_gateway_rights_age_seconds)", "s", 10),
            stat("Of connections_max", "max(duetime_connections / duetime_connections_max)", "percentunit", 0.8),
            stat("Connections cut, last hour", "sum(increase(duetime_connections_cut_total[1h])) or vector(0)"),
        ),
        (
            panel(
                "Calls rejected per second",
                (f"sum by (reason) (rate(duetime_gateway_refused_total{RATE}))", "{{reason}}"),
                text="By authentication and rights. Many token_invalid: token guessing, or a rotated token.",
            ),
            panel(
                "Calls ended per second",
                (f"sum by (reason) (rate(duetime_gateway_calls_ended_total{RATE}))", "{{reason}}"),
                text="Streams and waiting calls whose caller lost a right.",
            ),
        ),
        (
            panel(
                "Remaining validity of certificates",
                (
                    "min by (job, instance, of) (duetime_tls_certificate_expires_timestamp_seconds) - time()",
                    "{{job}} {{instance}}: {{of}}",
                ),
                unit="s",
                text="A process's own certificate, and the CA. Renewed files are loaded within a second.",
            ),
            panel(
                "Rejected for their certificates, per second",
                (f"sum by (job, reason) (rate(duetime_tls_refused_total{RATE}))", "{{job}}: {{reason}}"),
                text="Calls with the certificate of another role. Failed handshakes are in the caller's log.",
            ),
            panel(
                "Changed certificates",
                (f"sum by (job, outcome) (rate(duetime_tls_reloads_total{RATE}))", "{{job}}: {{outcome}}"),
            ),
        ),
        (
            panel("Connections", by_process("duetime_connections")),
            panel("Admitted by old rights, per second", by_process(f"rate(duetime_gateway_stale_calls_total{RATE})")),
        ),
        (
            panel("Compiled front: connections that wait", by_process("duetime_front_waiting_connections")),
            panel("Compiled front: clients that read nothing", by_process("duetime_front_unread_connections")),
            panel("Compiled front: unread answers", by_process("duetime_front_answer_bytes"), unit="bytes"),
            panel("Compiled front: rejected per second", by_process(f"rate(duetime_front_refused_total{RATE})")),
        ),
        (
            panel(
                "Used share of each quota",
                (
                    "sum by (kind, name, limit) (duetime_gateway_quota_used)"
                    " / max by (kind, name, limit) (duetime_gateway_quota_limit)",
                    "{{kind}} {{name}}: {{limit}}",
                ),
                unit="percentunit",
                text="Each gateway reports all pending messages: several gateways multiply the count.",
            ),
            panel(
                "Requests rejected for a quota, per second",
                (
                    f"sum by (kind, name, limit) (rate(duetime_gateway_quota_refused_total{RATE}))",
                    "{{kind}} {{name}}: {{limit}}",
                ),
            ),
            panel(
                "Requests that wait for others of their user",
                ("sum by (instance) (duetime_turns_waiting)", "{{instance}}"),
                text="A user sends more than is processed at once, and waits so that others need not.",
            ),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, STORES, GROUPS, PROCESSES, CALLERS)


def to_json(dashboard: Dashboard) -> str:
    """The JSON of Grafana's file format (schema 39, version 11 or later)."""
    panels, top, number = [], 0, 0
    for row in dashboard.rows:
        width, height = WIDTH // len(row), 4 if row[0].kind == "stat" else 8
        for column, one in enumerate(row):
            number += 1
            place = {"x": column * width, "y": top, "w": width, "h": height}
            panels.append(_panel(one, number) | {"gridPos": place})
        top += height
    found = {
        "uid": f"duetime-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["duetime"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["duetime"], "title": "DueTime", "asDropdown": False}],
        "panels": panels,
    }
    return json.dumps(found, indent=1) + "\n"


def _panel(one: Panel, number: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "expr": query, "legendFormat": legend or "__auto", "datasource": SOURCE}
        for n, (query, legend) in enumerate(one.queries)
    ]
    defaults: dict[str, Any] = {"unit": one.unit, "min": 0}
    options: dict[str, Any] = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if one.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if one.red_above is not None:
            # Grafana's step includes its value: red starts just above it.
            steps.append({"color": "red", "value": one.red_above + 1e-9})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": one.text,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def main() -> None:
    """Rewrites all files."""
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(to_json(dashboard))


if __name__ == "__main__":
    main()
