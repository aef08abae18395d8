"""Requests that the HTTP API refuses before any call, and its answers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from duetime_console.api.limits import HTTP_BATCH_COUNT_MAX, HTTP_DEPTH_MAX, HTTP_VALUES_MAX
from duetime_console.api.openapi import OPERATIONS, document, schemas
from duetime_console.border import REQUEST_BYTES_MAX
from duetime_core.testing import Cluster

from tests.console.console import running

MESSAGE = {"topic": "orders", "body": "settle 42"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with Cluster(within=True) as cluster, running(cluster.address) as browser:
        yield browser.client


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert isinstance(found, dict)
    assert found["status"] == status
    assert found["type"].endswith(f"#{found['reason'].lower()}")
    return found


async def refused(client: httpx.AsyncClient, content: bytes | str, **headers: str) -> dict[str, Any]:
    headers = {"content-type": "application/json"} | headers
    return problem(await client.post("/api/v1/messages", content=content, headers=headers), 400)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"topic": "orders",\n "body": }', "line 2, column 10"),
        ("", "line 1, column 1"),
        ('{"topic": "orders"} x', "line 1, column 21"),
        (b'{"topic": "\xff"}', "byte 11"),
        ('{"topic": "a", "topic": "b"}', "'topic' twice"),
        ('{"topic": "a", "' + '": 1, "'.join(map(str, range(50_000))) + '": 1, "topic": 2}', "'topic' twice"),
        ('{"' + "x" * 1_000 + '": 1, "' + "x" * 1_000 + '": 2}', "xxx'... twice"),
        ("[" + "1," * HTTP_VALUES_MAX + "1]", "more than 65,536 values"),
        ("[" + '"",' * 8 * HTTP_VALUES_MAX + "1]", "more than 65,536 values"),
        ('{"body": "' + ",[" * HTTP_VALUES_MAX + '\\"", "flag": -}', "Expecting value"),
        ('{"flag": NaN}', "NaN"),
        ('{"body_json": 1e999}', "'1e999' is above the largest number"),
        ('{"body_json": [-1e999]}', "'-1e999' is above the largest number"),
        ('{"topic": "\\ud800"}', "surrogates"),
        ("[" * 50_000, "deeper"),
        ("[" * (HTTP_DEPTH_MAX + 2) + "]" * (HTTP_DEPTH_MAX + 2), "deeper"),
        ('{"flag": ' + "9" * 5_000 + "}", "not JSON"),
    ],
)
async def test_bad_json_is_refused_with_its_place(client: httpx.AsyncClient, content: bytes | str, place: str) -> None:
    assert place in (await refused(client, content))["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"topic": None}, "topic"),
        ({"topic": 5}, "topic"),
        ({"delay": "soon"}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": 30}, "delay"),
        ({"deliver_at": "2026-12-24T18:00:00"}, "deliver_at"),
        ({"deliver_at": "9" * 5_000}, "deliver_at"),
        ({"delay": "1s", "delay_level": 3}, ""),
        ({"body_json": None}, ""),
        ({"flag": 2**31}, "flag"),
        ({"flag": "1"}, "flag"),
        ({"properties": {"a": 1}}, "properties.a"),
        ({"keys": ["a", 2]}, "keys[1]"),
        ({"retry": {"exponential": {"initial": "1s", "max": "1h"}, "intervals": ["1s"]}}, "retry"),
        ({"id": "x" * 256}, "id"),
    ],
)
async def test_field_that_is_wrong_is_named(client: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    found = await refused(client, json.dumps(MESSAGE | change))
    assert [each["field"] for each in found["violations"]] == [field]


async def test_invalid_base64_is_rejected(client: httpx.AsyncClient) -> None:
    found = await refused(client, json.dumps({"topic": "orders", "body_base64": "a*b="}))
    assert found["violations"] == [{"field": "body_base64", "description": "is not base64 (RFC 4648)"}]


async def test_all_violations_are_reported_up_to_a_limit(client: httpx.AsyncClient) -> None:
    found = await refused(client, json.dumps({f"field{number}": 1 for number in range(200)}))
    assert len(found["violations"]) == 32


async def test_body_that_is_too_large_is_refused(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(REQUEST_BYTES_MAX // 65_536 + 1):
            yield b" " * 65_536

    for content in (b" " * (REQUEST_BYTES_MAX + 1), chunks()):
        answer = await client.post("/api/v1/messages", content=content, headers={"content-type": "application/json"})
        assert problem(answer, 413)["reason"] == "REQUEST_TOO_LARGE"


async def test_batch_that_is_too_large_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/v1/messages/batch", json={"messages": [MESSAGE] * (HTTP_BATCH_COUNT_MAX + 1)})
    assert problem(answer, 400)["violations"][0]["field"] == "messages"


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json; charset=latin-1"],
)
async def test_types_that_pages_of_other_sites_may_send_are_refused(
    client: httpx.AsyncClient, content_type: str
) -> None:
    answer = await client.post("/api/v1/messages", content=json.dumps(MESSAGE), headers={"content-type": content_type})
    assert problem(answer, 415)["reason"] == "CONTENT_TYPE_UNSUPPORTED"


async def test_compressed_body_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/v1/messages", json=MESSAGE, headers={"content-encoding": "gzip"})
    assert problem(answer, 415)
    assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "text/html"}, 406),
        ({"accept": "application/json;q=0, text/html"}, 406),
        ({"accept-charset": "latin-1"}, 406),
        ({"accept": "text/html, application/*;q=0.5"}, 200),
        ({"accept": "application/json; charset=utf-8", "accept-charset": "UTF-8"}, 200),
        ({"accept": ""}, 200),
    ],
)
async def test_answers_are_json_in_utf_8(client: httpx.AsyncClient, headers: dict[str, str], status: int) -> None:
    answer = await client.get("/api/v1/backlog", headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == ("application/json" if status == 200 else "application/problem+json")


async def test_calls_from_other_sites_and_by_other_names_are_refused(client: httpx.AsyncClient) -> None:
    for headers, status in (({"origin": "https://else.where"}, 403), ({"host": "else.where"}, 421)):
        problem(await client.post("/api/v1/messages", json=MESSAGE, headers=headers), status)


async def test_method_that_a_path_does_not_have_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.put("/api/v1/messages/batch", json={})
    assert problem(answer, 405)["reason"] == "METHOD_NOT_ALLOWED"
    assert answer.headers["allow"] == "POST"
    answer = await client.post("/api/v1/messages/x", json={})
    problem(answer, 405)
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH"
    # Browsers send this before they let a page of another site send JSON.
    answer = await client.options("/api/v1/messages", headers={"origin": "https://else.where"})
    problem(answer, 405)
    assert "access-control-allow-origin" not in answer.headers


async def test_missing_path_is_a_problem_document(client: httpx.AsyncClient) -> None:
    for path in ("/api/v2", "/api/v1/message"):
        assert problem(await client.get(path), 404)["reason"] == "PATH_NOT_FOUND"
        assert problem(await client.post(path, json={}), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pending?topics=a",
        "/api/v1/pending?max=0",
        "/api/v1/pending?max=1&max=2",
        "/api/v1/pending?page=*",
        "/api/v1/backlog?due_from=5&due_before=4",
        "/api/v1/messages?topic=orders",
        "/api/v1/messages/x?trace=perhaps",
    ],
)
async def test_query_that_is_wrong_is_refused(client: httpx.AsyncClient, path: str) -> None:
    assert problem(await client.get(path), 400)["violations"]


async def test_authorization_that_is_no_token_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/v1/backlog", headers={"authorization": "Basic YTpi"})
    assert problem(answer, 401)["reason"] == "TOKEN_INVALID"
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_unreachable_cluster_is_reported_with_a_retry_time() -> None:
    # Nobody listens there.
    async with running("127.0.0.1:1") as browser:
        answer = await browser.get("/api/v1/backlog")
    assert "127.0.0.1:1" in problem(answer, 503)["detail"]
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, '""'])
async def test_invalid_idempotency_key_is_rejected(client: httpx.AsyncClient, key: str) -> None:
    assert "Idempotency-Key" in (await refused(client, json.dumps(MESSAGE), **{"idempotency-key": key}))["detail"]


async def test_idempotency_key_that_nothing_is_made_of_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "order-42"}
    problem(await client.post("/api/v1/messages/batch", json={"messages": [MESSAGE]}, headers=headers), 400)
    problem(await client.post("/api/v1/messages", json=MESSAGE | {"id": "order-41"}, headers=headers), 400)
    headers = {"idempotency-key": "no-such-letters"}
    problem(await client.patch("/api/v1/messages/x", json={"delay": "1s"}, headers=headers), 400)


async def test_read_only_console_changes_nothing() -> None:
    async with Cluster(within=True) as cluster, running(cluster.address, read_only=True) as browser:
        client = browser.client
        assert problem(await client.post("/api/v1/messages", json=MESSAGE), 403)["reason"] == "READ_ONLY"
        given = {"group": "billing", "topic": "orders"}
        assert problem(await client.post("/api/v1/receive", json=given), 403)["reason"] == "READ_ONLY"
        assert problem(await client.delete("/api/v1/messages/x"), 403)["reason"] == "READ_ONLY"
        assert (await client.get("/api/v1/backlog")).status_code == 200


async def test_document_has_every_operation_and_every_reference(client: httpx.AsyncClient) -> None:
    found = (await client.get("/api/v1/openapi.json")).json()
    assert found == json.loads(json.dumps(document()))
    assert found["openapi"].startswith("3.1")
    named = {one["operationId"] for path in found["paths"].values() for one in path.values()}
    assert named == {each.name for each in OPERATIONS}
    names = {reference.rpartition("/")[2] for reference in _references(found)}
    assert names <= set(found["components"]["schemas"])
    assert "MessageFields" in names
    assert found["components"]["schemas"]["MessageFields"]["additionalProperties"] is False
    assert all(rows or text for _, text, rows in schemas())


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()
