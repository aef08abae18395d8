"""Undecided transactions: the list with their age, and each with its message and its decision."""

from typing import Any
from urllib.parse import urlencode

from duetime.client.errors import Damaged
from duetime.client.record import decompressed
from duetime.v1 import transactions_pb2
from duetime_core.clock import Clock
from duetime_format.lengths import parse_ms
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.asking import asked, path_of
from duetime_console.bodies import shown
from duetime_console.gateway import GatewayError
from duetime_console.rendering import page, query_of
from duetime_console.session import call

SHOWN_MAX = 100
_FIELDS = ("group", "topic", "state", "older")
_STATES = {
    "open": transactions_pb2.TRANSACTION_STATE_OPEN,
    "given-up": transactions_pb2.TRANSACTION_STATE_GIVEN_UP,
}
_WORDS: dict[int, str] = {
    transactions_pb2.TRANSACTION_STATE_OPEN: "open",
    transactions_pb2.TRANSACTION_STATE_COMMITTED: "committed",
    transactions_pb2.TRANSACTION_STATE_ROLLED_BACK: "rolled back",
    transactions_pb2.TRANSACTION_STATE_GIVEN_UP: "given up",
}
_DECISIONS = {"commit": transactions_pb2.DECISION_COMMIT, "roll-back": transactions_pb2.DECISION_ROLLBACK}
_UNDECIDED = (transactions_pb2.TRANSACTION_STATE_OPEN, transactions_pb2.TRANSACTION_STATE_GIVEN_UP)


def word_of(state: int) -> str:
    """For people."""
    return _WORDS.get(state, "unknown")


def _now_ms(request: Request) -> int:
    clock: Clock = request.app.state.clock
    return clock.now_ms()


async def transactions(request: Request) -> Response:
    form = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
    faults: dict[str, str] = {}
    older_ms = parse_ms(form["older"]) if form["older"] else 0
    now_ms = _now_ms(request)
    if older_ms is None or older_ms > now_ms:
        faults["older"] = f"{form['older']!r} is not a length such as 90s, 1h30m or 2d"
    answer: Any = None
    if not faults:
        wanted = transactions_pb2.ListTransactionsRequest(
            group=form["group"],
            topic=form["topic"],
            state=_STATES.get(form["state"], transactions_pb2.TRANSACTION_STATE_UNSPECIFIED),
            prepared_before_ms=now_ms - int(older_ms or 0) if older_ms else 0,
            page_size=SHOWN_MAX,
            page_token=request.query_params.get("page", ""),
        )
        answer = await asked(request, "ListTransactions", wanted)
    error = answer if isinstance(answer, GatewayError) else None
    is_told = answer is not None and error is None
    after = answer.next_page_token if is_told else ""
    given = {name: value for name, value in form.items() if value}
    return page(
        request,
        "transactions.html",
        form=form,
        faults=faults,
        error=error,
        rows=answer.transactions if is_told else [],
        unreachable=answer.unreachable_shards if is_told else [],
        next_address=urlencode(given | {"page": after}) if after else "",
        is_filtered=bool(given),
        word_of=word_of,
        now_ms=now_ms,
        status=422 if faults else error.status if error else 200,
    )


async def transaction(request: Request) -> Response:
    return await _show(request, None)


def _topic(request: Request) -> str:
    return request.query_params.get("topic", "")


async def _found(request: Request) -> Any:
    given_id, topic = request.path_params["id"], _topic(request)
    return await call(request, "GetTransaction", transactions_pb2.GetTransactionRequest(id=given_id, topic=topic))


async def _show(request: Request, error: GatewayError | None) -> Response:
    found = await _found(request)
    body, damage = b"", ""
    try:
        body = decompressed(found.message.body, found.message.sys_flag)
    except Damaged as damaged:
        damage = damaged.text
    return page(
        request,
        "transaction.html",
        found=found.transaction,
        message=found.message if found.HasField("message") else None,
        sent=found.sent if found.HasField("sent") else None,
        body=body,
        damage=damage,
        shown=shown(body, request.query_params.get("show", "")),
        here=path_of("transactions", request.path_params["id"]),
        address=lambda **more: query_of({"topic": _topic(request)}, **more),
        word=word_of(found.transaction.state),
        is_undecided=found.transaction.state in _UNDECIDED,
        told=request.query_params.get("told", ""),
        now_ms=_now_ms(request),
        error=error,
        status=error.status if error else 200,
    )


async def end(request: Request) -> Response:
    """Commits or rolls back, even a transaction that was given up. The first decision is final."""
    decision = _DECISIONS.get(str((await request.form()).get("act")))
    given_id = request.path_params["id"]
    try:
        if decision is None:
            raise GatewayError("INVALID_ARGUMENT", "choose whether to commit or to roll back")
        one = (await _found(request)).transaction
        ends = [transactions_pb2.TransactionEnd(transaction_id=one.transaction_id, decision=decision)]
        wanted = transactions_pb2.EndTransactionRequest(group=one.group, ends=ends, given_up=True)
        (result,) = (await call(request, "EndTransaction", wanted)).results
        if result.HasField("fault"):
            raise GatewayError.of_fault(result.fault)
    except GatewayError as error:
        return await _show(request, error)
    told = "before" if result.duplicate else "now"
    return RedirectResponse(
        f"{path_of('transactions', given_id)}?{query_of({'topic': _topic(request)}, told=told)}", 303
    )


ROUTES = [
    Route("/transactions", transactions, methods=["GET"]),
    Route("/transactions/{id:path}", transaction, methods=["GET"]),
    Route("/transactions/{id:path}", end, methods=["POST"]),
]
