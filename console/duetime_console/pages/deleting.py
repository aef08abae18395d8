"""Deletes a topic after a dry run: an empty one only, or with its contents."""

from typing import Any

from duetime.v1 import gateway_pb2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.asking import asked, path_of
from duetime_console.gateway import DELETE_TIMEOUT_S, GatewayError
from duetime_console.proofs import proofs_of
from duetime_console.rendering import page
from duetime_console.session import viewer_of

_ACTION = "delete-topic"


async def preview(request: Request) -> Response:
    """The dry run, with the form that does it."""
    return await _preview(request)


async def _preview(request: Request, error: GatewayError | None = None, notice: str = "") -> Response:
    """`error`: of the deletion. The dry run alone still finds a topic whose deletion is in progress."""
    name = request.path_params["name"]
    left = await asked(request, "DeleteTopic", gateway_pb2.DeleteTopicRequest(name=name, dry_run=True))
    if isinstance(left, GatewayError):
        if error is None:
            raise left
        left = None
    count = 0 if left is None else _count(left)
    # A proof needs a count: an empty topic counts as one.
    proof = "" if left is None else proofs_of(request).make(viewer_of(request), _ACTION, {"topic": name}, count + 1)
    return page(
        request,
        "topic_delete.html",
        name=name,
        left=left,
        count=count,
        proof=proof,
        error=error,
        notice=notice,
        status=error.status if error else 409 if notice else 200,
    )


async def delete(request: Request) -> Response:
    """Deletes the topic of a dry run."""
    name, form = request.path_params["name"], await request.form()
    if not proofs_of(request).check(viewer_of(request), _ACTION, {"topic": name}, str(form.get("proof", ""))):
        return await _preview(request, notice="Nothing was changed: the dry run is too old. This is a new one.")
    wanted = gateway_pb2.DeleteTopicRequest(name=name, force=form.get("force") == "1")
    done = await asked(request, "DeleteTopic", wanted, DELETE_TIMEOUT_S)
    if isinstance(done, GatewayError):
        return await _preview(request, done)
    return RedirectResponse(f"/topics?deleted={path_of(name)[1:]}", 303)


def _count(left: gateway_pb2.DeleteTopicResponse) -> int:
    """The total of the contents; a message with remaining work in several groups counts for each."""
    return left.pending_count + left.transaction_count + sum(map(_of_group, left.groups))


def _of_group(one: Any) -> int:
    return int(one.unread_count + one.in_flight_count + one.retry_count + one.dead_letter_count)


ROUTES = [
    Route("/topics/{name}/delete", preview, methods=["GET"]),
    Route("/topics/{name}/delete", delete, methods=["POST"]),
]
