"""The jobs `dead_letters` and `retries` on a handful of rows."""

import json
from typing import Any

import pyarrow as pa
from duetime_spark.jobs import dead_letters, retries
from duetime_spark.jobs.dead_letters import DeadLetterSample, masked
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.frames import context

NOW = 1_700_000_000_000


def letter(offset: int, *errors: tuple[str, str], group: str = "billing", **fields: Any) -> dict[str, Any]:
    attempts = [[number, NOW, NOW + 5, *error, None] for number, error in enumerate(errors, 1)]
    properties = {"DLQ_ORIGIN_TOPIC": "orders", "DT_DEAD_REASON": "ATTEMPTS_EXHAUSTED"}
    if attempts:
        properties["DT_ATTEMPTS"] = json.dumps({"attempts": attempts, "shortened": 0, "left_out": 0})
    place = {"shard": 0, "topic": f"%DLQ%{group}", "queue": 0, "offset": offset, "id": f"ID{offset}"}
    rest = {"stored_at_ms": NOW + offset, "born_host": "10.0.0.7:41", "reconsume_times": len(errors)}
    return {**place, **rest, "properties": properties, **fields}


def test_similar_dead_letters_are_one_group(spark: SparkSession) -> None:
    letters = [letter(at, ("OSError", "first"), ("KeyError", f"no account {at} in 'table-{at}'")) for at in range(5)]
    letters += [
        letter(5, ("KeyError", "no account 7 in 'x'"), group="mail"),
        letter(6, ("KeyError", "no account 7 in 'x'"), ("KeyError", "no account 7 in 'x'"), born_host="[::1]:9"),
        letter(7, properties={"RETRY_TOPIC": "bills"}, reconsume_times=3),
        {**letter(8), "topic": "orders"},
    ]
    gone = [{"shard": 0, "topic": "%DLQ%billing", "queue": 0, "offset": 1}]
    found = dead_letters.run(context(spark, {"messages": letters, "gone": gone}))
    told = [(one.group, one.topic, one.signature, one.attempts, one.producer, one.count) for one in found.groups]
    assert told == [
        ("billing", "orders", "KeyError: no account # in '?'", 2, "10.0.0.7", 4),
        ("billing", "bills", "unknown", 3, "10.0.0.7", 1),
        ("billing", "orders", "KeyError: no account # in '?'", 2, "[::1]", 1),
        ("mail", "orders", "KeyError: no account # in '?'", 1, "10.0.0.7", 1),
    ]
    assert (found.count, found.group_count, found.left_out) == (7, 4, 0)
    first = found.groups[0]
    assert (first.first_at_ms, first.last_at_ms) == (NOW, NOW + 4)
    assert first.samples == [
        DeadLetterSample(f"ID{at}", 0, 0, at, NOW + at, f"no account {at} in 'table-{at}'") for at in (4, 3, 2)
    ]


def test_groups_past_the_limit_are_counted(spark: SparkSession) -> None:
    letters = [letter(0), letter(1, properties={"DT_DEAD_REASON": "REJECTED"}), letter(2)]
    found = dead_letters.run(context(spark, {"messages": letters}, listed=1))
    assert [(one.signature, one.count) for one in found.groups] == [("ATTEMPTS_EXHAUSTED", 2)]
    assert (found.count, found.group_count, found.left_out) == (3, 2, 1)


def test_differences_between_messages_are_masked(spark: SparkSession) -> None:
    cases = {
        "order 4711 timed out after 3.5 s": "order # timed out after # s",
        "key 'a b' is not \"c\"": "key '?' is not '?'",
        "id 0a1b2c3d-0000-4000-8000-00aa11bb22cc": "id #",
        "at 0x7F3A and deadbeef1 and facade": "at # and # and facade",
        "12:00:01,5 at 10.0.0.1:80": "# at #",
        "plain words": "plain words",
    }
    frame = spark.createDataFrame(pa.table({"words": list(cases)}))
    assert {row[0]: row[1] for row in frame.select("words", masked(F.col("words"))).collect()} == cases


def test_retries_report_the_attempts_per_success(spark: SparkSession) -> None:
    def ended(end: str, attempt: int, times: int = 1, group: str = "billing") -> list[dict[str, Any]]:
        return [{"group": group, "topic": "orders", "attempt": attempt, "end": end}] * times

    rows = ended("acked", 1, 6) + ended("acked", 3, 2) + ended("failed", 1, 2) + ended("expired", 2, 2)
    rows += ended("open", 1) + ended("returned", 1) + ended("dead", 4) + ended("failed", 1, group="mail")
    rows += ended("lapsed", 0, 3) + ended("lapsed", 0, 2, group="late")
    found = retries.run(context(spark, {"deliveries": rows}))
    billing, late, mail = found.groups
    assert billing == retries.RetrySummary(
        "billing", "orders", 15, 8, 2, 2, 1, 1, 1, 3, 5, 0.3333, 1.625, by_attempt={1: 6, 3: 2}
    )
    assert (mail.group, mail.attempts_per_success, mail.wasted_share) == ("mail", None, 1.0)
    assert (late.deliveries, late.lapsed, late.wasted_share) == (0, 2, 0.0)
    assert (found.deliveries, found.succeeded, found.wasted, found.lapsed) == (16, 8, 6, 5)
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["by_attempt"] == {"1": 6, "3": 2}
