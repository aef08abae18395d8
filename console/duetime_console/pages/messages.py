"""Messages: searched by id, key, tag, topic, due time or text; and pending ones cancelled by filter after a dry run."""

from dataclasses import dataclass
from typing import Any

from duetime.client.errors import Damaged
from duetime.client.record import decompressed
from duetime.v1 import gateway_pb2, message_pb2, pending_pb2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.fields import bytes_of, opaque
from duetime_console.api.models import state_of
from duetime_console.asking import asked, path_of
from duetime_console.bodies import snippet
from duetime_console.gateway import Gateway, GatewayError
from duetime_console.moments import InvalidMoment, moment_ms
from duetime_console.proofs import proofs_of
from duetime_console.rendering import page, query_of
from duetime_console.session import viewer_of

# Messages read at once. A page of a text search shows up to twice as many; it transfers bodies.
SHOWN_MAX = 100
FIND_KEY_MAX = 64
# Pages read for one request with a text.
SEARCHED_MAX = 50
# Time for which a request counts or cancels before it reports its progress.
CANCEL_S_MAX = 20.0
_FIELDS = ("id", "topic", "key", "tag", "from", "before", "text", "where")
_FILTER = ("topic", "key", "from", "before")


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in the list."""

    message: message_pb2.StoredMessage
    state: str
    shard: int
    lane: int
    snippet: str


def _form(source: Any, names: tuple[str, ...] = _FIELDS) -> dict[str, str]:
    return {name: str(source.get(name) or "").strip() for name in names}


def _times(form: dict[str, str], faults: dict[str, str]) -> tuple[int, int]:
    """Unix ms of `from` and `before`; 0: missing. Adds errors to `faults`."""
    found = []
    for name in ("from", "before"):
        try:
            found.append(moment_ms(form[name]) if form[name] else 0)
        except InvalidMoment as error:
            faults[name] = str(error)
            found.append(0)
    if found[0] and found[1] and found[0] >= found[1]:
        faults["before"] = "must be after `Due from`"
    return found[0], found[1]


def _is_bounded(form: dict[str, str]) -> bool:
    """Whether the filter may be cancelled as a whole."""
    return bool(form["topic"] or form["from"] or form["before"])


def _filter(form: dict[str, str], faults: dict[str, str]) -> pending_pb2.PendingFilter:
    since_ms, before_ms = _times(form, faults)
    return pending_pb2.PendingFilter(
        topic=form["topic"], key=form["key"], due_from_ms=since_ms, due_before_ms=before_ms
    )


async def messages(request: Request) -> Response:
    form = _form(request.query_params)
    if form["id"]:
        address = path_of("messages", form["id"])
        return RedirectResponse(f"{address}?{query_of({'topic': form['topic']})}" if form["topic"] else address, 303)
    faults: dict[str, str] = {}
    wanted = _filter(form, faults)
    token = _token(request.query_params.get("page", ""), faults)
    faults |= _any_faults(form) if form["where"] == "any" else _pending_faults(form)
    found: Any = None
    if not faults:
        found = await (_by_word(request, form) if form["where"] == "any" else _pending(request, form, wanted, token))
    error = found if isinstance(found, GatewayError) else None
    is_topic_missing = error is not None and error.code == "NOT_FOUND"
    if is_topic_missing:
        error, found = None, None
    rows, next_page, seen, is_cut = ([], "", 0, False) if found is None or error else found
    return page(
        request,
        "messages.html",
        form=form,
        faults=faults,
        error=error,
        rows=rows,
        seen=seen,
        is_cut=is_cut,
        next_address=query_of(form, page=next_page) if next_page else "",
        cancel_address=query_of({name: form[name] for name in _FILTER}),
        can_cancel=_is_bounded(form) and form["where"] != "any" and not form["text"],
        is_filtered=any(form.values()),
        is_topic_missing=is_topic_missing,
        status=422 if faults else error.status if error else 200,
    )


def _any_faults(form: dict[str, str]) -> dict[str, str]:
    """Faults of a search in any state, which reads the index of one topic."""
    faults = {} if form["topic"] else {"topic": "is needed to find messages that are not pending"}
    if not (form["key"] or form["tag"]):
        faults["key"] = "or a tag is needed to find messages that are not pending"
    elif form["key"] and form["tag"]:
        faults["tag"] = "can't be combined with a key"
    return faults


def _pending_faults(form: dict[str, str]) -> dict[str, str]:
    return {"tag": "finds messages in any state, not pending ones alone"} if form["tag"] else {}


def _token(text: str, faults: dict[str, str]) -> bytes:
    try:
        return bytes_of(text)
    except ValueError:
        faults["page"] = "is not a page of this list"
        return b""


async def _pending(request: Request, form: dict[str, str], wanted: pending_pb2.PendingFilter, token: bytes) -> Any:
    """Rows, the next page, the number of messages read, and False: the next page has the others; or the error."""
    text = form["text"]
    rows: list[MessageRow] = []
    seen = 0
    for _ in range(SEARCHED_MAX if text else 1):
        wanted_page = pending_pb2.ListPendingRequest(
            filter=wanted, max_count=SHOWN_MAX, page_token=token, omit_bodies=not text
        )
        answer = await asked(request, "ListPending", wanted_page)
        if isinstance(answer, GatewayError):
            return answer
        token, seen = answer.next_page_token, seen + len(answer.messages)
        for each in answer.messages:
            body = _body(each.message) if text else b""
            if text.lower() in body.decode("utf-8", "replace").lower():
                rows.append(MessageRow(each.message, "pending", each.shard, each.lane, snippet(body, text)))
        if not token or len(rows) >= SHOWN_MAX:
            break
    return rows, opaque(token), seen, False


def _body(message: message_pb2.StoredMessage) -> bytes:
    try:
        return decompressed(message.body, message.sys_flag)
    except Damaged:
        return message.body


async def _by_word(request: Request, form: dict[str, str]) -> Any:
    """Messages with a key or tag: rows, no next page, the number of messages read, and whether older ones were left
    out; or the error."""
    wanted = gateway_pb2.QueryMessagesRequest(
        topic=form["topic"], key=form["key"], tag=form["tag"], max_count=FIND_KEY_MAX
    )
    answer = await asked(request, "QueryMessages", wanted)
    if isinstance(answer, GatewayError):
        return answer
    rows = [
        MessageRow(each.message, state_of(each), each.shard, each.lane, snippet(_body(each.message), form["text"]))
        for each in answer.messages
        if form["text"].lower() in _body(each.message).decode("utf-8", "replace").lower()
    ]
    return rows, "", len(answer.messages), answer.more


# --- Cancel by filter ------------------------------------------------------------------------------------------------


async def preview(request: Request) -> Response:
    """The dry run: the number of messages, with the form that cancels them."""
    return await _preview(request, _form(request.query_params, _FILTER))


async def _preview(request: Request, form: dict[str, str], notice: str = "") -> Response:
    faults: dict[str, str] = {}
    wanted = _filter(form, faults)
    if not _is_bounded(form):
        faults["topic"] = "give a topic or a range of due times: cancelling all pending messages is not supported"
    last, is_all = pending_pb2.CancelProgress(), True
    if not faults:
        last, is_all = await _match(request, wanted, dry_run=True)
    viewer = viewer_of(request)
    proof = "" if faults else proofs_of(request).make(viewer, "cancel", form, last.matched_count)
    return page(
        request,
        "cancel.html",
        form=form,
        faults=faults,
        notice=notice,
        found=last,
        is_all=is_all,
        proof=proof,
        done=None,
        address=query_of(form),
        status=422 if faults else 409 if notice else 200,
    )


async def cancel(request: Request) -> Response:
    """Cancels the messages that a dry run has counted."""
    given = await request.form()
    form = _form(given, _FILTER)
    counted = proofs_of(request).check(viewer_of(request), "cancel", form, str(given.get("proof", "")))
    if not counted:
        notice = "Nothing was changed: the dry run was for another filter, found nothing, or is too old. This is new."
        return await _preview(request, form, notice)
    last, is_all = await _match(request, _filter(form, {}), dry_run=False)
    return page(
        request,
        "cancel.html",
        form=form,
        faults={},
        notice="",
        found=last,
        is_all=is_all,
        proof="",
        done=last,
        address=query_of(form),
    )


async def _match(
    request: Request, wanted: pending_pb2.PendingFilter, *, dry_run: bool
) -> tuple[pending_pb2.CancelProgress, bool]:
    """The last progress within CANCEL_S_MAX, and whether it is the end. Raises: GatewayError."""
    gateway: Gateway = request.app.state.gateway
    asked_for = pending_pb2.CancelMatchingRequest(filter=wanted, dry_run=dry_run)
    last = await gateway.last("CancelMatching", asked_for, viewer_of(request).token, CANCEL_S_MAX)
    last = last or pending_pb2.CancelProgress()
    return last, last.done


ROUTES = [
    Route("/messages", messages, methods=["GET"]),
    Route("/cancel", preview, methods=["GET"]),
    Route("/cancel", cancel, methods=["POST"]),
]
