"""A summary as tables, for people."""

from datetime import UTC, datetime
from typing import Any

from duetime.cli.output import length, local, print_table
from duetime_format.levels import DelayLevels
from duetime_format.printing import echo


def print_summary(found: dict[str, Any]) -> None:
    log, point = found["commitLog"], found["checkpoint"]
    left = "abort exists: in use, or killed" if found["abortFile"] else "stopped cleanly"
    echo(f"{found['name']}, written by {found['writtenBy']}, {left}")
    echo(
        f"commit log {log['minPhysicalOffset']:,} to {log['maxPhysicalOffset']:,}: {log['records']:,} records, "
        f"{log['recordBytes']:,} bytes, {log['files']} files, {log['blanks']} BLANK marks, "
        f"{log['recordsInNoQueueCount']} records in no queue"
    )
    if point is None:
        echo("no checkpoint")
    else:
        place = f", position {point['position']:,}" if "position" in point else ""
        echo(
            f"checkpoint: log {_time(point['physicMsgTimestamp'])}, queues {_time(point['logicsMsgTimestamp'])}{place}"
        )
    _print_waiting(found)
    rows = [
        (topic, queue, f"{ends['min']:,}", f"{ends['max']:,}", f"{ends['max'] - ends['min']:,}")
        for topic, queues in found["queues"].items()
        for queue, ends in queues.items()
    ]
    print_table(["topic", "#queue", "#min offset", "#max offset", "#messages"], rows)
    _print_groups(found)
    _print_engines(found)
    _print_index(found)
    for damage in found["damaged"]:
        echo(f"damaged at {damage['physicalOffset']}: {damage['damage']}")


def _print_waiting(found: dict[str, Any]) -> None:
    delays = DelayLevels.parse(found["delayLevels"]).delays_ms
    rows = [
        (level, length(delays[int(level) - 1]) if int(level) <= len(delays) else "-", f"{mark:,}", f"{pending:,}")
        for (level, mark), pending in zip(
            found["watermarks"].items(), found["pendingPerDelayLevel"].values(), strict=True
        )
    ]
    echo(f"pending: {found['pendingTotal']:,} by level")
    print_table(["#level", "#delay", "#watermark", "#pending"], rows)
    if ended := sum(found["endedPerDelayLevel"].values()):
        echo(f"cancelled, and not passed yet: {ended:,}")
    _print_timers(found)
    if halves := found["halfMessages"]["pending"]:
        echo(f"half messages: {halves:,} neither committed nor rolled back")


def _print_timers(found: dict[str, Any]) -> None:
    lanes = found["timerLanes"]
    if lanes:
        echo(f"pending: {sum(lane['pending'] for lane in lanes.values()):,} for any time")
        rows = [
            (number, _time(lane["dueAtMs"] or 0), f"{lane['max']:,}", f"{lane['pending']:,}", f"{lane['ended']:,}")
            for number, lane in lanes.items()
        ]
        print_table(["#timer lane", "restored until", "#entries", "#pending", "#ended"], rows)
    if timer := found.get("timer"):
        echo(f"a broker's wheel: {timer['pending']:,} in it, {timer['notInWheel']:,} not yet")


def _print_groups(found: dict[str, Any]) -> None:
    rows = []
    for name, offsets in found["consumerOffset"].items():
        topic, _, group = name.rpartition("@")
        queues = found["queues"].get(topic, {})
        ends = {queue: queues.get(queue, {}).get("max", 0) for queue in offsets}
        rows += [(group, topic, queue, f"{offset:,}", f"{ends[queue] - offset:,}") for queue, offset in offsets.items()]
    if rows:
        print_table(["group", "topic", "#queue", "#offset", "#behind"], rows)


def _print_engines(found: dict[str, Any]) -> None:
    rows = [
        (name, family, f"{count:,}" if isinstance(count, int) else count)
        for name, families in found.get("engines", {}).items()
        for family, count in (families or {"-": 0}).items()
    ]
    if rows:
        print_table(["engine", "column family", "#entries"], rows)
    if received := found.get("pops"):
        echo(f"received by POP, and not acknowledged: {sum(len(pop['offsets']) for pop in received):,}")
    for loss in found.get("losses", []):
        echo(f"loss of {loss['kind']}: {loss['text']}")


def _print_index(found: dict[str, Any]) -> None:
    rows = [
        (file["name"], f"{file['entries']:,}", f"{file['beginPhyOffset']:,}", f"{file['endPhyOffset']:,}")
        if "damage" not in file
        else (file["name"], file["damage"], "", "")
        for file in found["indexFiles"]
    ]
    if rows:
        print_table(["index file", "#entries", "#from position", "#to position"], rows)


def _time(at_ms: int) -> str:
    try:
        return local(datetime.fromtimestamp(at_ms / 1000, UTC)) if at_ms > 0 else "-"
    except (OverflowError, ValueError):
        return str(at_ms)
