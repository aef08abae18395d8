"""Dead letters of a group: grouped by error and handler, listed, redriven, discarded and exported."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

from duetime.cli.dlq import letter_object
from duetime.client.errors import Damaged
from duetime.client.finding.dead_letters import DeadLetter
from duetime.v1 import consumer_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from duetime_console.asking import asked, path_of
from duetime_console.gateway import CALL_TIMEOUT_S, Gateway, GatewayError
from duetime_console.jobs import Action, DeadLetterJob, DeadLetterJobs, TooManyJobs, count
from duetime_console.letters import FILTER_FIELDS, Cause, causes_of, error_of, filter_of, handler_of
from duetime_console.lists import ListColumn, ListView
from duetime_console.moments import InvalidMoment
from duetime_console.overview.watch import Watch
from duetime_console.pages.groups import descriptions_of, sums_of
from duetime_console.proofs import proofs_of
from duetime_console.rendering import fragment, page, query_of, wants_fragment
from duetime_console.session import call, viewer_of

# Dead letters in the overview by error, the newest ones, and in one answer.
DIGESTED_MAX = 5_000
_PAGE_COUNT = 500
# Dead letters on one page of the list.
_SHOWN = 50
# Groups with most dead letters that are named separately if not all can be sorted.
_FULLEST = 10
_RATE_DEFAULT = 50.0
_RATE_MAX = 1_000_000.0
_ACTIONS = ("redrive", "discard")


async def dead_letters(request: Request) -> Response:
    group = request.query_params.get("group", "").strip()
    return await (_of_group(request, group) if group else _choose(request))


async def _choose(request: Request) -> Response:
    """Groups by their number of dead letters."""
    listed = await asked(request, "ListGroups", consumer_pb2.ListGroupsRequest())
    refused = [listed] if isinstance(listed, GatewayError) else []
    groups = [] if refused else listed.groups
    by_name: dict[str, consumer_pb2.GroupDescription] = {}

    async def describe(some: Sequence[consumer_pb2.Group]) -> None:
        found = await descriptions_of(request, [group.name for group in some])
        by_name.update({one.group.name: one for one in found.groups})
        refused.extend(found.refused)

    def dead(group: consumer_pb2.Group) -> int:
        return by_name[group.name].dead_letters if group.name in by_name else -1

    def lag(group: consumer_pb2.Group) -> int:
        return sums_of(by_name[group.name])["lag"] if group.name in by_name else -1

    columns: list[ListColumn[Any]] = [
        ListColumn("name", "Group", lambda group: group.name.lower()),
        ListColumn("dead", "Dead letters", dead, is_number=True, is_asked=True),
        ListColumn("lag", "Lag", lag, is_number=True, is_asked=True),
    ]
    listing = ListView(request.query_params, columns, "-dead")
    await listing.ask(groups, lambda group: group.name, describe)
    fullest = await _fullest(request, groups, describe) if listing.is_cut else []
    unreachable = sorted({shard for one in by_name.values() for shard in one.unreachable_shards})
    return page(
        request,
        "dead_letters.html",
        listing=listing,
        refused=refused,
        by_name=by_name,
        dead=dead,
        lag=lag,
        unreachable=unreachable,
        fullest=[group for group in fullest if dead(group) > 0],
        all_count=len(groups),
    )


async def _fullest(
    request: Request,
    groups: Sequence[consumer_pb2.Group],
    describe: Callable[[Sequence[consumer_pb2.Group]], Awaitable[None]],
) -> list[consumer_pb2.Group]:
    """The groups with most dead letters, wherever they are in the list. The console's own counts select them; their
    current counts are read in the name of the viewer."""
    watch: Watch = request.app.state.watch
    wanted = watch.groups.fullest(_FULLEST)
    found = sorted((group for group in groups if group.name in wanted), key=lambda group: wanted.index(group.name))
    await describe(found)
    return found


def _values(source: Any) -> dict[str, str]:
    return {name: str(source.get(name) or "").strip() for name in FILTER_FIELDS}


def _address(group: str, values: dict[str, str], **more: str) -> str:
    """The query of a filter."""
    return query_of({"group": group, **values}, **more)


async def _of_group(request: Request, group: str) -> Response:
    values = _values(request.query_params)
    try:
        wanted, fault = filter_of(group, values), ""
    except InvalidMoment as error:
        wanted, fault = None, str(error)
    causes: list[Cause] = []
    letters: list[consumer_pb2.DeadLetter] = []
    next_page, all_seen = "", True
    if wanted is not None:
        letters, next_page = await _list(
            request, wanted, _SHOWN, request.query_params.get("page", ""), newest_first=True
        )
        seen, after = await _seen(request, wanted)
        causes, all_seen = causes_of(seen), not after
    return page(
        request,
        "dead_letters_of.html",
        group=group,
        form=values,
        fault=fault,
        filtered=any(values.values()),
        causes=causes,
        counted=sum(cause.count for cause in causes),
        all_seen=all_seen,
        letters=letters,
        error_of=error_of,
        handler_of=handler_of,
        address=lambda **more: _address(group, values, **more),
        cause_address=lambda cause: _address(group, values | {"error": cause.needle}),
        next_page=next_page,
        jobs=_jobs(request).of(viewer_of(request), group),
        status=422 if fault else 200,
    )


async def _list(
    request: Request, wanted: consumer_pb2.DeadLetterFilter, most: int, after: str, *, newest_first: bool = False
) -> tuple[list[consumer_pb2.DeadLetter], str]:
    asked_for = consumer_pb2.ListDeadLettersRequest(
        filter=wanted, max_count=most, page=after, newest_first=newest_first
    )
    answer = await call(request, "ListDeadLetters", asked_for)
    return list(answer.letters), answer.next_page


async def _seen(request: Request, wanted: consumer_pb2.DeadLetterFilter) -> tuple[list[consumer_pb2.DeadLetter], str]:
    """The newest DIGESTED_MAX without their bodies, and the page token of the rest; empty: no rest."""
    found: list[consumer_pb2.DeadLetter] = []
    after = ""
    while len(found) < DIGESTED_MAX:
        letters, after = await _list(request, wanted, _PAGE_COUNT, after, newest_first=True)
        for letter in letters:
            letter.message.ClearField("body")
        found += letters
        if not after:
            break
    return found, after


async def dead_letter(request: Request) -> Response:
    """One dead letter with its attempts; several if messages share an id."""
    group, message_id = request.query_params.get("group", ""), request.path_params["id"]
    letters, _ = await _list(request, consumer_pb2.DeadLetterFilter(group=group, ids=[message_id]), _SHOWN, "")
    if not letters:
        raise HTTPException(
            404, f"group {group} has no dead letter {message_id}: it was redriven, was discarded, or never existed"
        )
    return page(
        request,
        "dead_letter.html",
        group=group,
        id=message_id,
        letters=[(letter, _body(letter)) for letter in letters],
        handler_of=handler_of,
        address=_address(group, {"ids": message_id}),
    )


def _body(letter: consumer_pb2.DeadLetter) -> bytes | None:
    """None: the body can't be decompressed."""
    try:
        return DeadLetter(letter).body
    except Damaged:
        return None


# --- Changes --------------------------------------------------------------------------------------------------------


async def preview(request: Request) -> Response:
    """The dry run: the number of dead letters, with the form that acts on them."""
    action = _action(request)
    source = request.query_params
    return await _preview(request, action, source.get("group", ""), _values(source), source.get("rate", ""))


async def _preview(
    request: Request,
    action: Action,
    group: str,
    values: dict[str, str],
    rate: str,
    *,
    fault: str = "",
    notice: str = "",
) -> Response:
    viewer = viewer_of(request)
    found, is_all = 0, True
    if not fault:
        try:
            wanted = filter_of(group, values)
            found, is_all = await count(_gateway(request), action, wanted, viewer.token, CALL_TIMEOUT_S)
        except InvalidMoment as error:
            fault = str(error)
    proof = "" if fault else proofs_of(request).make(viewer, action, values | {"group": group}, found)
    return page(
        request,
        "dead_letters_do.html",
        action=action,
        group=group,
        form=values,
        rate=rate or f"{_RATE_DEFAULT:g}",
        found=found,
        is_all=is_all,
        fault=fault,
        notice=notice,
        filtered=any(values.values()),
        proof=proof,
        address=_address(group, values),
        status=422 if fault else 409 if notice else 200,
    )


async def do(request: Request) -> Response:
    """Starts a job on the dead letters that a dry run has counted, and on no more."""
    action, form, viewer = _action(request), await request.form(), viewer_of(request)
    group, values, rate_text = str(form.get("group", "")), _values(form), str(form.get("rate", ""))
    if (rate := _rate(rate_text)) is None:
        fault = f"{rate_text!r} is not a rate: 0 to {_RATE_MAX:,.0f} per second; 0: no limit"
        return await _preview(request, action, group, values, "", fault=fault)
    expected = proofs_of(request).check(viewer, action, values | {"group": group}, str(form.get("proof", "")))
    if not expected:
        notice = (
            "Nothing was changed: the dry run was for another filter, found nothing, or is too old. This is a new one."
        )
        return await _preview(request, action, group, values, rate_text, notice=notice)
    wanted = filter_of(group, values)
    # Rejected here rather than in the background, where the error would stay hidden.
    await _list(request, wanted, 1, "")
    try:
        job = _jobs(request).start(request.app.state.tasks, action, wanted, rate, expected, viewer)
    except TooManyJobs as error:
        return await _preview(request, action, group, values, rate_text, notice=f"Nothing was changed: {error}.")
    return RedirectResponse(path_of("dead-letters", "jobs", job.id), 303)


def _rate(text: str) -> float | None:
    try:
        rate = float(text or "0")
    except ValueError:
        return None
    return rate if 0 <= rate <= _RATE_MAX else None


async def show_job(request: Request) -> Response:
    job = _job(request)
    show = fragment if wants_fragment(request) else page
    template = "job_part.html" if wants_fragment(request) else "job.html"
    return show(request, template, job=job, filter_address=_filter_address(job))


async def stop_job(request: Request) -> Response:
    job = _job(request)
    _jobs(request).stop(job)
    return RedirectResponse(path_of("dead-letters", "jobs", job.id), 303)


def _filter_address(job: DeadLetterJob) -> str:
    wanted = job.filter
    values = {name: getattr(wanted, name) for name in ("error", "topic", "tag", "key")}
    return _address(wanted.group, values | {"ids": " ".join(wanted.ids)})


async def export(request: Request) -> Response:
    """JSON lines, one for each dead letter that matches the filter, in the form of `duetime dlq list --json`."""
    group = request.query_params.get("group", "")
    try:
        wanted = filter_of(group, request.query_params)
    except InvalidMoment as error:
        raise HTTPException(422, str(error)) from None
    # Rejected before the answer begins.
    first, after = await _list(request, wanted, _PAGE_COUNT, "")
    headers = {"content-disposition": 'attachment; filename="dead-letters.jsonl"', "cache-control": "no-store"}
    return StreamingResponse(_lines(request, wanted, first, after), headers=headers, media_type="application/jsonl")


async def _lines(
    request: Request, wanted: consumer_pb2.DeadLetterFilter, letters: list[consumer_pb2.DeadLetter], after: str
) -> AsyncIterator[str]:
    while True:
        for letter in letters:
            yield json.dumps(letter_object(DeadLetter(letter)), ensure_ascii=False) + "\n"
        if not after:
            return
        letters, after = await _list(request, wanted, _PAGE_COUNT, after)


def _action(request: Request) -> Action:
    action = request.path_params["action"]
    if action not in _ACTIONS:
        raise HTTPException(404)
    return cast(Action, action)


def _job(request: Request) -> DeadLetterJob:
    """Raises: HTTPException: it is another user's, or the console was restarted since."""
    job = _jobs(request).get(request.path_params["id"], viewer_of(request))
    if job is None:
        raise HTTPException(404, "unknown job: the console may have been restarted since")
    return job


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _jobs(request: Request) -> DeadLetterJobs:
    jobs: DeadLetterJobs = request.app.state.jobs
    return jobs


ROUTES = [
    Route("/dead-letters", dead_letters),
    Route("/dead-letters/export", export),
    Route("/dead-letters/letters/{id}", dead_letter),
    Route("/dead-letters/jobs/{id}", show_job),
    Route("/dead-letters/jobs/{id}/stop", stop_job, methods=["POST"]),
    Route("/dead-letters/{action}", preview),
    Route("/dead-letters/{action}", do, methods=["POST"]),
]
