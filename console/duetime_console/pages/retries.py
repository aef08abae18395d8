"""Waiting retries of a group: the list with errors; delivery now or discard after a dry run."""

from typing import Any

from duetime.client.administering.retries import WaitingRetry
from duetime.v1 import consumer_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.api.fields import bytes_of, opaque
from duetime_console.asking import path_of
from duetime_console.gateway import Gateway
from duetime_console.proofs import proofs_of
from duetime_console.rendering import page, query_of
from duetime_console.session import call, viewer_of

SHOWN_MAX = 100
# Time of one request that counts or ends retries; the next one continues.
END_S_MAX = 20.0
_FIELDS = ("topic", "error", "ids")
_CALLS = {"retry-now": "RetryNow", "discard": "DiscardRetries"}


def _form(source: Any) -> dict[str, str]:
    return {name: str(source.get(name) or "").strip() for name in _FIELDS}


def _filter(group: str, form: dict[str, str]) -> consumer_pb2.RetryFilter:
    ids = form["ids"].replace(",", " ").split()
    return consumer_pb2.RetryFilter(group=group, topic=form["topic"], error=form["error"], ids=ids)


def _address(group: str, *parts: str, form: dict[str, str], **more: str) -> str:
    query = query_of(form, **more)
    return path_of("groups", group, "retries", *parts) + (f"?{query}" if query else "")


async def retries(request: Request) -> Response:
    group, form = request.path_params["name"], _form(request.query_params)
    try:
        token = bytes_of(request.query_params.get("page", ""))
    except ValueError:
        raise HTTPException(422, "page is not a page of this list") from None
    wanted = consumer_pb2.ListRetriesRequest(
        filter=_filter(group, form), max_count=SHOWN_MAX, page_token=token, omit_bodies=True
    )
    answer = await call(request, "ListRetries", wanted)
    next_page = opaque(answer.next_page_token)
    return page(
        request,
        "group_retries.html",
        group=group,
        form=form,
        retries=[(one, WaitingRetry(one)) for one in answer.retries],
        is_filtered=any(form.values()),
        next_address=_address(group, form=form, page=next_page) if next_page else "",
        end_address=lambda action: _address(group, action, form=form),
    )


async def preview(request: Request) -> Response:
    """The dry run: the number of retries, with the form that ends them."""
    return await _preview(request, _form(request.query_params))


async def _preview(request: Request, form: dict[str, str], notice: str = "") -> Response:
    group, action = request.path_params["name"], _action(request)
    found = await _end(request, form, dry_run=True)
    values = form | {"group": group}
    proof = proofs_of(request).make(viewer_of(request), f"retries {action}", values, found.matched_count)
    return _page(request, form, found, proof=proof, notice=notice, status=409 if notice else 200)


async def end(request: Request) -> Response:
    """Ends the retries that a dry run has counted, and later ones that match."""
    given = await request.form()
    form, action = _form(given), _action(request)
    values = form | {"group": request.path_params["name"]}
    if not proofs_of(request).check(viewer_of(request), f"retries {action}", values, str(given.get("proof", ""))):
        notice = "Nothing was changed: the dry run was for another filter, found nothing, or is too old. This is new."
        return await _preview(request, form, notice)
    return _page(request, form, await _end(request, form, dry_run=False), is_done=True)


async def _end(request: Request, form: dict[str, str], *, dry_run: bool) -> consumer_pb2.EndRetriesProgress:
    """The last progress within END_S_MAX. Raises: GatewayError."""
    gateway: Gateway = request.app.state.gateway
    wanted = consumer_pb2.EndRetriesRequest(filter=_filter(request.path_params["name"], form), dry_run=dry_run)
    last: consumer_pb2.EndRetriesProgress | None = await gateway.last(
        _CALLS[_action(request)], wanted, viewer_of(request).token, END_S_MAX
    )
    return last or consumer_pb2.EndRetriesProgress()


def _page(
    request: Request,
    form: dict[str, str],
    found: consumer_pb2.EndRetriesProgress,
    *,
    proof: str = "",
    notice: str = "",
    is_done: bool = False,
    status: int = 200,
) -> Response:
    group, action = request.path_params["name"], _action(request)
    return page(
        request,
        "group_retries_end.html",
        group=group,
        action=action,
        form=form,
        found=found,
        proof=proof,
        notice=notice,
        is_done=is_done,
        address=_address(group, form=form),
        again=_address(group, action, form=form),
        status=status,
    )


def _action(request: Request) -> str:
    action = str(request.path_params["action"])
    if action not in _CALLS:
        raise HTTPException(404)
    return action


ROUTES = [
    Route("/groups/{name}/retries", retries),
    Route("/groups/{name}/retries/{action}", preview),
    Route("/groups/{name}/retries/{action}", end, methods=["POST"]),
]
