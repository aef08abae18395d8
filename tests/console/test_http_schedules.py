"""Schedules over the HTTP API of a running cluster."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from duetime_core.testing import Cluster
from duetime_core.testing.clock import START_MS

from tests.console.console import running
from tests.console.test_http_calls import received
from tests.console.test_http_requests import problem

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEDULES = "/api/v1/topics/{topic}/schedules"
START = "2023-11-14T22:13:20.000Z"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    """Each test has its own topic."""
    async with Cluster(within=True) as found:
        assert found.clock.now_ms() == START_MS
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with running(cluster.address, cluster.clock) as browser:
        yield browser.client


def path(topic: str, name: str = "", act: str = "") -> str:
    return SCHEDULES.format(topic=topic) + (f"/{name}" if name else "") + (f"/{act}" if act else "")


async def put(client: httpx.AsyncClient, topic: str, name: str, status: int = 201, **fields: Any) -> dict[str, Any]:
    answer = await client.put(path(topic, name), json=fields)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def act(client: httpx.AsyncClient, topic: str, name: str, what: str, status: int = 200) -> dict[str, Any]:
    answer = await client.post(path(topic, name, what), json={})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


RULES: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({"every": "90s"}, ["2023-11-14T22:14:50.000Z", "2023-11-14T22:16:20.000Z"], {"start_at": START}),
    ({"every": "1h", "start_at": START_MS + 5_000}, ["2023-11-14T22:13:25.000Z", "2023-11-14T23:13:25.000Z"], {}),
    ({"every": "1d", "start_at": 0}, ["2023-11-15T00:00:00.000Z", "2023-11-16T00:00:00.000Z"], {}),
    ({"at": ["2023-11-15T12:00:00+01:00"]}, ["2023-11-15T11:00:00.000Z"], {"at": ["2023-11-15T11:00:00.000Z"]}),
    (
        {"cron": "30 2 * * mon-fri", "zone": "Europe/Berlin", "missed": "all", "in_gap": "skip", "in_fold": "both"},
        ["2023-11-15T01:30:00.000Z", "2023-11-16T01:30:00.000Z"],
        {"cron": "30 2 * * mon-fri", "zone": "Europe/Berlin", "missed": "all", "in_gap": "skip", "in_fold": "both"},
    ),
]


@pytest.mark.parametrize(("rule", "times", "told"), RULES)
async def test_a_schedule_has_its_next_times(
    client: httpx.AsyncClient, rule: dict[str, Any], times: list[str], told: dict[str, Any]
) -> None:
    made = await put(client, "times", "report", 201, **rule)
    assert (made["created"], made["unchanged"], made["version"], made["next_at"]) == (True, False, 1, times[:1])
    answer = await client.get(path("times", "report"), params={"next": 2})
    found = answer.json()
    assert found["next_at"] == times
    assert told.items() <= found.items()
    pending = (await client.get(f"/api/v1/messages/{found['id']}?topic=times")).json()
    assert (pending["state"], pending["due_at"], pending["keys"]) == ("pending", times[0], ["report"])
    assert (await client.delete(path("times", "report"))).json() == {"name": "report", "topic": "times"}
    assert problem(await client.get(path("times", "report")), 404)["reason"] == "SCHEDULE_NOT_FOUND"


async def test_a_schedule_is_put_again_from_its_answer(client: httpx.AsyncClient) -> None:
    retry = {"max_attempts": 5, "exponential": {"initial": "1s", "max": "1h", "factor": 3.0, "jitter": 0.0}}
    fields = {
        "body_json": {"a": 1},
        "tags": "t",
        "properties": {"p": "v"},
        "flag": 7,
        "expires": "1h30m",
        "retry": retry,
    }
    made = await put(client, "again", "a", every="1h", **fields)
    given = {
        name: made[name]
        for name in ("body", "every", "start_at", "missed", "tags", "properties", "flag", "expires", "retry")
    }
    assert (given["body"], given["retry"]) == ('{"a":1}', retry)
    assert given["properties"] == {"content_type": "application/json", "p": "v"}
    assert (await put(client, "again", "a", 200, **given))["unchanged"]
    changed = await put(client, "again", "a", 200, **given | {"every": "2h", "retry": {"intervals": ["1s", "10m"]}})
    assert (changed["version"], changed["created"], changed["every"]) == (2, False, "2h")
    assert changed["retry"] == {"max_attempts": 0, "intervals": ["1s", "10m"]}
    answer = await client.put(path("again", "a"), params={"create_only": "true"}, json={"every": "3h"})
    assert problem(answer, 409)["reason"] == "SCHEDULE_EXISTS"


async def test_a_dry_run_shows_times_and_stores_nothing(client: httpx.AsyncClient) -> None:
    asked = {"dry_run": "true", "next": 3}
    answer = await client.put(path("no-topic-yet", "a"), params=asked, json={"every": "1h"})
    times = ["2023-11-14T23:13:20.000Z", "2023-11-15T00:13:20.000Z", "2023-11-15T01:13:20.000Z"]
    assert (answer.status_code, answer.json()["created"], answer.json()["next_at"]) == (200, False, times)
    assert problem(await client.get(path("no-topic-yet", "a")), 404)["reason"] == "TOPIC_NOT_FOUND"
    assert problem(await client.put(path("no-topic-yet", "a"), params=asked, json={"cron": "61 * * * *"}), 400)


async def test_several_schedules_have_a_result_each(client: httpx.AsyncClient) -> None:
    await put(client, "several", "changed", every="2h")
    given = [
        {"topic": "several", "name": "new", "cron": "@daily", "body": "x", "paused": True},
        {"topic": "several", "name": "wrong", "cron": "61 * * * *"},
        {"topic": "several", "name": "changed", "every": "2h", "body_json": {"a": 1}},
    ]
    answer = await client.post("/api/v1/schedules/batch", json={"schedules": given})
    assert answer.status_code == 200, answer.text
    new, wrong, changed = answer.json()["results"]
    assert (new["schedule"]["created"], new["schedule"]["paused"], new["schedule"]["next_at"]) == (True, True, [])
    assert "schedule" not in wrong
    assert [one["field"] for one in wrong["problem"]["violations"]] == ["schedule.cron"]
    assert (changed["schedule"]["version"], changed["schedule"]["properties"]) == (
        2,
        {"content_type": "application/json"},
    )
    again = await client.post("/api/v1/schedules/batch", json={"schedules": given[:1]})
    assert again.json()["results"][0]["schedule"]["unchanged"]
    other = {"schedules": [given[0] | {"body": "y"}], "create_only": True}
    refused = (await client.post("/api/v1/schedules/batch", json=other)).json()["results"][0]
    assert refused["problem"]["reason"] == "SCHEDULE_EXISTS"
    nameless = await client.post("/api/v1/schedules/batch", json={"schedules": [{"topic": "several", "every": "1h"}]})
    assert (nameless.status_code, nameless.json()["violations"][0]["field"]) == (400, "schedules[0].name")


async def test_schedules_are_listed_page_by_page(client: httpx.AsyncClient) -> None:
    for number, name in enumerate("abc"):
        await put(client, "listed", name, every=f"{3 - number}h", body="x")
    await act(client, "listed", "b", "pause")
    names: list[str] = []
    page: str | None = ""
    while page is not None:
        answer = (await client.get(path("listed"), params={"max": 1, "page": page})).json()
        names += [one["name"] for one in answer["schedules"]]
        assert all("body" not in one for one in answer["schedules"])
        page = answer["next_page"]
    assert names == ["c", "a", "b"]
    counts = (await client.get("/api/v1/schedules/counts", params={"topic": "listed"})).json()
    assert counts == {
        "counts": [{"topic": "listed", "shard": 0, "schedules": 3, "paused": 1}],
        "unreachable_shards": [],
    }
    assert counts["counts"][0] in (await client.get("/api/v1/schedules/counts")).json()["counts"]
    unknown = await client.get("/api/v1/schedules/counts", params={"topic": "no-such-topic"})
    assert problem(unknown, 404)["reason"] == "TOPIC_NOT_FOUND"
    with_bodies = (await client.get(path("listed"), params={"bodies": "true"})).json()["schedules"]
    assert {one["body"] for one in with_bodies} == {"x"}
    assert problem(await client.get(path("no-such-topic")), 404)["reason"] == "TOPIC_NOT_FOUND"


async def test_a_schedule_is_paused_resumed_and_run(client: httpx.AsyncClient) -> None:
    await put(client, "acts", "a", every="1h", body="run")
    for _ in range(2):
        paused = await act(client, "acts", "a", "pause")
        assert (paused["paused"], paused["pause_reason"], paused["next_at"]) == (True, None, [])
    for _ in range(2):
        assert (await act(client, "acts", "a", "resume"))["next_at"] == ["2023-11-14T23:13:20.000Z"]
    headers = {"idempotency-key": "once1"}
    answers = [await client.post(path("acts", "a", "run"), json={}, headers=headers) for _ in range(2)]
    assert {one.status_code for one in answers} == {201}
    assert len({one.json()["id"] for one in answers}) == 1
    (message,) = await received(client, topic="acts")
    assert (message["id"], message["body"], message["keys"]) == (answers[0].json()["id"], "run", ["a"])
    assert (await client.get(answers[0].headers["location"])).json()["id"] == message["id"]
    answer = await client.post(path("acts", "a", "run"), json={}, headers={"idempotency-key": "not-one"})
    assert problem(answer, 400)["reason"] == "REQUEST_INVALID"


async def history(client: httpx.AsyncClient, topic: str, name: str, **asked: int) -> dict[str, Any]:
    answer = await client.get(path(topic, name, "history"), params=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("what", ["pause", "resume", "run", "history"])
async def test_a_schedules_name_may_end_like_an_operation(client: httpx.AsyncClient, what: str) -> None:
    topic = f"slashes-{what}"
    shorter = await put(client, topic, "a", every="1h")
    name = f"a%2F{what}"
    made = await client.put(path(topic, name), json={"every": "1h"})
    assert made.headers["location"] == f"/api/v1/topics/{topic}/schedules/{name}"
    assert (await client.get(path(topic, name))).json()["name"] == f"a/{what}"
    assert (await client.get(path(topic, name.replace("F", "f")))).json()["name"] == f"a/{what}"
    # Without the operation, the call is not one of the shorter name.
    assert (await client.post(path(topic, name), json={})).status_code == 405
    assert (await act(client, topic, name, "pause"))["paused"]
    assert shorter["id"] not in [one["id"] for one in (await history(client, topic, name))["occurrences"]]
    assert not (await client.get(path(topic, "a"))).json()["paused"]
    assert (await client.delete(path(topic, name))).status_code == 200


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, ""),
        ({"every": "1h", "cron": "* * * * *"}, ""),
        ({"cron": "* * * * *", "start_at": START_MS}, ""),
        ({"every": "1h", "zone": "Europe/Berlin"}, ""),
        ({"at": [START_MS], "in_gap": "skip"}, ""),
        ({"every": "1h", "in_fold": "both"}, ""),
        ({"every": "soon"}, "every"),
        ({"at": []}, "at"),
        ({"every": "1h", "missed": "never"}, "missed"),
        ({"every": "1h", "colour": "red"}, "colour"),
        ({"every": "10ms"}, "every"),
        ({"at": [1]}, "schedule.at"),
        ({"cron": "61 * * * *"}, "schedule.cron"),
        ({"cron": "* * * * *", "zone": "Mars"}, "schedule.cron"),
        ({"every": "1h", "properties": {"KEYS": "x"}}, 'schedule.message.properties["KEYS"]'),
    ],
)
async def test_a_wrong_schedule_is_refused_with_its_field(
    client: httpx.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    found = problem(await client.put(path("wrong", "a"), json=fields), 400)
    assert [one["field"] for one in found["violations"]] == [field]


async def test_changes_of_schedules_take_json_alone(client: httpx.AsyncClient) -> None:
    for what in ("pause", "resume", "run"):
        answer = await client.post(path("forms", "a", what), data={"a": "b"})
        assert problem(answer, 415)["reason"] == "CONTENT_TYPE_UNSUPPORTED"


async def test_read_only_console_shows_schedules_and_changes_none(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await put(client, "read", "a", every="1h")
    async with running(cluster.address, read_only=True) as browser:
        assert (await browser.client.get(path("read", "a"))).status_code == 200
        assert len((await history(browser.client, "read", "a"))["occurrences"]) == 1
        assert len((await browser.client.get(path("read"))).json()["schedules"]) == 1
        answers = [await browser.client.post(path("read", "a", what), json={}) for what in ("pause", "resume", "run")]
        answers += [await browser.client.put(path("read", "a"), json={"every": "2h"})]
        for answer in [*answers, await browser.client.delete(path("read", "a"))]:
            assert problem(answer, 403)["reason"] == "READ_ONLY"
