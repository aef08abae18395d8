"""Shards: the contents, lanes and files of each."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from duetime.v1 import export_pb2, gateway_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.asking import asked
from duetime_console.lists import ListColumn, ListView
from duetime_console.pages import lanes as lane_pages
from duetime_console.rendering import page
from duetime_console.session import call


@dataclass(slots=True)
class ShardSummary:
    """A shard, from the data of its lanes."""

    number: int
    answers: bool
    lanes: list[gateway_pb2.Lane]

    @property
    def pending(self) -> int:
        return sum(lane.pending_count for lane in self.lanes)

    @property
    def restored(self) -> int:
        return sum(lane.restored_count for lane in self.lanes)

    @property
    def quarantined(self) -> int:
        return sum(lane.quarantined_count for lane in self.lanes)

    @property
    def next_due_at_ms(self) -> int:
        """0: none."""
        return min((lane.next_due_at_ms for lane in self.lanes if lane.next_due_at_ms), default=0)

    @property
    def late_p99_ms(self) -> float:
        """The lateness of its latest lane; -1: no lane has delivered anything yet."""
        return max((lane.late_p99_ms for lane in self.lanes), default=-1.0)

    @property
    def paused(self) -> int:
        return sum(lane.paused for lane in self.lanes)

    @property
    def unowned(self) -> int:
        return sum(not lane.owner and not lane.paused for lane in self.lanes)


async def _shards(request: Request) -> list[ShardSummary]:
    listed, lanes = await asyncio.gather(
        call(request, "ListShards", export_pb2.ListShardsRequest()),
        call(request, "ListLanes", gateway_pb2.ListLanesRequest()),
    )
    by_shard: dict[int, list[gateway_pb2.Lane]] = defaultdict(list)
    for lane in lanes.lanes:
        by_shard[lane.shard].append(lane)
    silent = {*listed.unreachable_shards, *lanes.unreachable_shards}
    return [ShardSummary(number, number not in silent, by_shard[number]) for number in listed.shards]


async def shards(request: Request) -> Response:
    columns: list[ListColumn[Any]] = [
        ListColumn("shard", "Shard", lambda one: one.number),
        ListColumn("pending", "Pending", lambda one: one.pending, is_number=True),
        ListColumn("due", "Next due", lambda one: one.next_due_at_ms or float("inf")),
        ListColumn("late", "Durable late p99", lambda one: one.late_p99_ms, is_number=True),
        ListColumn("restored", "Delivered", lambda one: one.restored, is_number=True),
        ListColumn("unowned", "Lanes without owner", lambda one: one.unowned, is_number=True),
        ListColumn("paused", "Lanes paused", lambda one: one.paused, is_number=True),
    ]
    found = await _shards(request)
    listing = ListView(request.query_params, columns, "shard")
    listing.show(found, lambda one: f"{one.number} {'answers' if one.answers else 'does not answer'}")
    return page(request, "shards.html", listing=listing, all_count=len(found))


async def shard(request: Request) -> Response:
    number = request.path_params["shard"]
    found, files = await asyncio.gather(
        _shards(request), asked(request, "ListFiles", export_pb2.ListFilesRequest(shard=number))
    )
    one = next((one for one in found if one.number == number), None)
    if one is None:
        raise HTTPException(404, f"shard {number} does not exist")
    return page(
        request,
        "shard.html",
        shard=one,
        lanes=[lane for lane in one.lanes if lane_pages.is_used(lane)],
        state_of=lane_pages.state_of,
        files=_by_kind(getattr(files, "files", ())),
        refused=None if hasattr(files, "files") else files,
    )


def _by_kind(files: Any) -> list[tuple[str, int, int]]:
    """First folder or name of files, their number, and the bytes written."""
    found: dict[str, tuple[int, int]] = {}
    for file in files:
        kind = file.path.partition("/")[0]
        count, size = found.get(kind, (0, 0))
        found[kind] = count + 1, size + file.written_bytes
    return [(kind, *sums) for kind, sums in sorted(found.items())]


ROUTES = [
    Route("/shards", shards),
    Route("/shards/{shard:int}", shard),
]
