"""Errors of the HTTP API: `application/problem+json` (RFC 9457), with the status for gRPC's code."""

import json
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from duetime.v1 import message_pb2
from starlette.responses import Response

from duetime_console.api.limits import HTTP_VIOLATIONS_MAX, RETRY_AFTER_S_DEFAULT
from duetime_console.gateway import GatewayError

# The prefix of all paths of the API; its page is beside them.
API = "/api/v1/"
PROBLEM_TYPE = "application/problem+json"
# RFC 9457: a problem that adds nothing to its status.
PLAIN = "about:blank"


class Problem(Exception):
    """An error of the API. `reason` is stable, `detail` is a sentence for people.

    `violations` are pairs of a field and its fault. `retry_after_s` is 0 if the answer has no Retry-After.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        *,
        violations: Iterable[tuple[str, str]] = (),
        retry_after_s: float = 0.0,
        headers: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.metadata = dict(metadata or {})
        self.status = status
        self.reason = reason
        self.detail = detail
        self.violations = tuple(violations)[:HTTP_VIOLATIONS_MAX]
        self.headers = dict(headers or {})
        if status == 401:
            self.headers.setdefault("WWW-Authenticate", "Bearer")
        if status in (429, 503):
            retry_after_s = retry_after_s or RETRY_AFTER_S_DEFAULT
        if retry_after_s:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))

    @classmethod
    def of_error(cls, error: GatewayError) -> "Problem":
        violations = [(each.field, each.description) for each in error.violations]
        reason = error.reason or error.code
        return cls(
            error.status,
            reason,
            error.text,
            violations=violations,
            retry_after_s=error.retry_after_s,
            metadata=error.metadata,
        )

    @classmethod
    def of_fault(cls, fault: message_pb2.Fault) -> "Problem":
        """The problem of one message of a batch."""
        return cls.of_error(GatewayError.of_fault(fault))

    def as_object(self, errors_url: str) -> dict[str, Any]:
        """The JSON of the answer. `errors_url`: the errors' page of the documents; a reason is an anchor there."""
        found: dict[str, Any] = {
            "type": f"{errors_url}#{self.reason.lower()}" if errors_url else PLAIN,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        if self.violations:
            found["violations"] = [{"field": field, "description": text} for field, text in self.violations]
        if self.metadata:
            found["metadata"] = self.metadata
        return found

    def response(self, errors_url: str) -> Response:
        text = json.dumps(self.as_object(errors_url), ensure_ascii=False)
        return Response(text.encode(), self.status, self.headers, PROBLEM_TYPE)


def invalid(detail: str, *violations: tuple[str, str]) -> Problem:
    """The request does not match the API."""
    return Problem(400, "REQUEST_INVALID", detail, violations=violations)
