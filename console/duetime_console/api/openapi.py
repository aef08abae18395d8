"""The OpenAPI document, built from the operations and the models that check them; and the rows of its page."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from duetime_console.api import (
    consuming,
    descriptions,
    finding,
    group_pauses,
    groups,
    pauses,
    retries,
    schedules,
    sending,
    topics,
    webhooks,
)
from duetime_console.api.models import ProblemAnswer
from duetime_console.api.operations import Operation
from duetime_console.api.problems import PROBLEM_TYPE
from duetime_console.api.reading import JSON_TYPE, KEY_HEADER

OPERATIONS: Sequence[Operation] = [
    *sending.OPERATIONS,
    *finding.OPERATIONS,
    *consuming.OPERATIONS,
    *retries.OPERATIONS,
    *groups.OPERATIONS,
    *group_pauses.OPERATIONS,
    *descriptions.OPERATIONS,
    *topics.OPERATIONS,
    *pauses.OPERATIONS,
    *schedules.OPERATIONS,
    *webhooks.OPERATIONS,
]
_PATH_TEXTS = {
    "id": "the message's id, percent-encoded",
    "name": "the topic's name, percent-encoded",
    "group": "the group's name, percent-encoded",
    "schedule": "the schedule's name, percent-encoded",
    "webhook": "the webhook's name",
}
_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTION = (
    "JSON over HTTP for a DueTime cluster. Lengths are text such as `1h30m`; times are text with a "
    "zone, or Unix milliseconds; answers use UTC. Calls need the cluster's token if it has users; "
    "cookies are ignored."
)


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    modes: list[tuple[type[BaseModel], Any]] = [(ProblemAnswer, "serialization")]
    for each in OPERATIONS:
        modes += [(each.body, "validation")] if each.body else []
        modes += [(model, "serialization") for model in each.answers.values()]
    references, definitions = models_json_schema(list(dict.fromkeys(modes)), ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "DueTime", "version": version("duetime-server"), "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, references: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if operation.description:
        found["description"] = operation.description
    if parameters := list(_parameters(operation)):
        found["parameters"] = parameters
    if operation.body is not None:
        schema = references[operation.body, "validation"]
        found["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
    answers = {
        str(status): {
            "description": (model.__doc__ or "").strip(),
            "content": {JSON_TYPE: {"schema": references[model, "serialization"]}},
        }
        for status, model in operation.answers.items()
    }
    problem = {"schema": references[ProblemAnswer, "serialization"]}
    answers["default"] = {"description": "An error.", "content": {PROBLEM_TYPE: problem}}
    return found | {"responses": answers}


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", operation.path):
        text = _PATH_TEXTS[name]
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": text}
    schema = operation.query.model_json_schema()
    for name, inner in schema.get("properties", {}).items():
        described = {key: value for key, value in inner.items() if key not in ("title", "description")}
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": described,
            "description": inner.get("description", ""),
        }
    if operation.key:
        yield {"name": KEY_HEADER, "in": "header", "schema": {"type": "string"}, "description": operation.key}


# --- for people -----------------------------------------------------------------------------------------------------


class FieldRow(NamedTuple):
    """A field or parameter on the page."""

    name: str
    kind: str
    required: bool
    text: str


class OperationSection(NamedTuple):
    """An operation on the page."""

    name: str
    method: str
    path: str
    summary: str
    text: str
    parameters: list[FieldRow]
    body: str
    answers: list[tuple[str, str]]


def sections() -> list[OperationSection]:
    """Sections of all operations."""
    return [
        _section(method.upper(), path, operation)
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    ]


def _section(method: str, path: str, operation: dict[str, Any]) -> OperationSection:
    parameters = [
        FieldRow(
            f"{each['name']} ({each['in']})", kind_of(each["schema"]), each.get("required", False), each["description"]
        )
        for each in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {})
    body = kind_of(content[JSON_TYPE]["schema"]) if content else ""
    answers = [
        (status, kind_of(next(iter(answer["content"].values()))["schema"]))
        for status, answer in operation["responses"].items()
    ]
    name, text = operation["operationId"], operation.get("description", "")
    return OperationSection(name, method, path, operation["summary"], text, parameters, body, answers)


def schemas() -> list[tuple[str, str, list[FieldRow]]]:
    """Name, meaning and fields of all objects."""
    found = []
    for name, schema in document()["components"]["schemas"].items():
        required = schema.get("required", ())
        rows = [
            FieldRow(field, kind_of(inner), field in required, inner.get("description", ""))
            for field, inner in schema.get("properties", {}).items()
        ]
        found.append((name, schema.get("description", ""), rows))
    return found


def kind_of(schema: dict[str, Any]) -> str:
    """A schema in words: `list of Sent`, `string or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind_of(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind_of(schema['additionalProperties'])}"
    known = {"date-time": "time", "base64": "base64"}
    return known.get(schema.get("format", schema.get("contentEncoding", "")), kind)
