"""Lanes: pending messages, scheduler and lateness of each; pauses and resumes them."""

from typing import Any

from duetime.v1 import gateway_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.asking import path_of
from duetime_console.lists import ListColumn, ListView
from duetime_console.rendering import page
from duetime_console.session import call

# Lanes from this number on are those for any time.
ANY_TIME = 1000
_NEVER = float("inf")


def is_used(lane: gateway_pb2.Lane) -> bool:
    """Whether it has or had messages, or is paused."""
    return bool(lane.pending_count or lane.paused or lane.quarantined_count or lane.late_p50_ms >= 0)


def state_of(lane: gateway_pb2.Lane) -> str:
    """The state in a word."""
    return "paused" if lane.paused else "served" if lane.owner else "without owner"


def columns() -> list[ListColumn[Any]]:
    return [
        ListColumn("lane", "Lane", lambda lane: (lane.level, lane.shard)),
        ListColumn("shard", "Shard", lambda lane: (lane.shard, lane.level)),
        ListColumn("pending", "Pending", lambda lane: lane.pending_count, is_number=True),
        ListColumn("due", "Next due", lambda lane: lane.next_due_at_ms or _NEVER),
        ListColumn("oldest", "Oldest due", lambda lane: lane.oldest_due_at_ms or _NEVER),
        ListColumn("late", "Durable late p99", lambda lane: lane.late_p99_ms, is_number=True),
        ListColumn("restored", "Delivered", lambda lane: lane.restored_count, is_number=True),
        ListColumn("state", "State", state_of),
    ]


async def lanes(request: Request) -> Response:
    listed = await call(request, "ListLanes", gateway_pb2.ListLanesRequest())
    with_all = request.query_params.get("all") == "1"
    shown = [lane for lane in listed.lanes if with_all or is_used(lane)]
    listing = ListView(request.query_params, columns(), "lane", kept=["all"])
    listing.show(shown, lambda lane: f"{lane.level} shard {lane.shard} {state_of(lane)} {lane.owner}")
    return page(
        request,
        "lanes.html",
        listing=listing,
        state_of=state_of,
        with_all=with_all,
        unused=len(listed.lanes) - len(shown),
        unreachable=list(listed.unreachable_shards),
        all_count=len(shown),
    )


async def lane(request: Request) -> Response:
    shard, level = request.path_params["shard"], request.path_params["level"]
    listed = await call(request, "ListLanes", gateway_pb2.ListLanesRequest())
    found = next((one for one in listed.lanes if (one.shard, one.level) == (shard, level)), None)
    if found is None and shard not in listed.unreachable_shards:
        raise HTTPException(404, f"shard {shard} has no lane {level}")
    others = [one for one in listed.lanes if one.level == level]
    return page(
        request,
        "lane.html",
        shard=shard,
        level=level,
        lane=found,
        state=state_of(found) if found else "",
        others=others,
        error=None,
    )


async def pause(request: Request) -> Response:
    return await _set_paused(request, "PauseLane")


async def resume(request: Request) -> Response:
    return await _set_paused(request, "ResumeLane")


async def _set_paused(request: Request, method: str) -> Response:
    shard, level = request.path_params["shard"], request.path_params["level"]
    form = await request.form()
    wanted = gateway_pb2.PauseLaneRequest(level=level)
    if form.get("where") != "all":
        wanted.shard = shard
    await call(request, method, wanted)
    return RedirectResponse(path_of("lanes", shard, level), 303)


ROUTES = [
    Route("/lanes", lanes),
    Route("/lanes/{shard:int}/{level:int}", lane),
    Route("/lanes/{shard:int}/{level:int}/pause", pause, methods=["POST"]),
    Route("/lanes/{shard:int}/{level:int}/resume", resume, methods=["POST"]),
]
