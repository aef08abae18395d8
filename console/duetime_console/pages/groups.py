"""Consumer groups: the list with counts, each with its offsets, receivers and policy, and its reset."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from duetime.cli.policies import backoff_of
from duetime.client.errors import InvalidArgument
from duetime.client.retry_policy import handler_policy
from duetime.v1 import consumer_pb2
from duetime_format import rates
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.asking import asked, path_of
from duetime_console.gateway import GatewayError
from duetime_console.lists import ListColumn, ListView
from duetime_console.moments import InvalidMoment, moment_ms
from duetime_console.rendering import page
from duetime_console.session import call

# Groups are described one by one: above this number a topic's page omits the rest, and says so.
DESCRIBED_MAX = 200
_DESCRIBED_AT_ONCE = 8
_STARTS = {
    consumer_pb2.GROUP_START_EARLIEST: "earliest",
    consumer_pb2.GROUP_START_LATEST: "latest",
    consumer_pb2.GROUP_START_TIME: "time",
}


@dataclass(slots=True)
class GroupDescriptions:
    """Groups with their offsets. `left_out`: the number of other groups; `refused`: errors of undescribed ones."""

    groups: list[consumer_pb2.GroupDescription] = field(default_factory=list)
    left_out: int = 0
    refused: list[GatewayError] = field(default_factory=list)


async def described_groups(request: Request) -> GroupDescriptions:
    """Groups visible to the caller."""
    listed = await asked(request, "ListGroups", consumer_pb2.ListGroupsRequest())
    if isinstance(listed, GatewayError):
        return GroupDescriptions(refused=[listed])
    names = [group.name for group in listed.groups]
    return await descriptions_of(request, names[:DESCRIBED_MAX], len(names) - DESCRIBED_MAX)


async def descriptions_of(request: Request, names: list[str], left_out: int = 0) -> GroupDescriptions:
    """Descriptions of these groups, if visible to the caller."""
    turns = asyncio.Semaphore(_DESCRIBED_AT_ONCE)

    async def describe(name: str) -> Any:
        async with turns:
            return await asked(request, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))

    answers = await asyncio.gather(*map(describe, names))
    found = GroupDescriptions(left_out=max(left_out, 0))
    for answer in answers:
        if isinstance(answer, GatewayError):
            found.refused.append(answer)
        else:
            found.groups.append(answer)
    return found


def sums_of(described: consumer_pb2.GroupDescription) -> dict[str, int]:
    """Sums over all its queues."""
    return {name: sum(getattr(queue, name) for queue in described.queues) for name in ("lag", "in_flight", "waiting")}


async def groups(request: Request) -> Response:
    listed = await call(request, "ListGroups", consumer_pb2.ListGroupsRequest())
    found = GroupDescriptions()
    by_name: dict[str, consumer_pb2.GroupDescription] = {}
    sums: dict[str, dict[str, int]] = {}

    async def describe(some: Sequence[consumer_pb2.Group]) -> None:
        nonlocal found
        found = await descriptions_of(request, [group.name for group in some])
        by_name.update({one.group.name: one for one in found.groups})
        sums.update({name: sums_of(one) for name, one in by_name.items()})

    def counted(name: str, what: str) -> int:
        return sums[name][what] if name in sums else -1

    columns: list[ListColumn[Any]] = [
        ListColumn("name", "Group", lambda group: group.name.lower()),
        ListColumn("lag", "Lag", lambda group: counted(group.name, "lag"), True, True),
        ListColumn("flight", "In flight", lambda group: counted(group.name, "in_flight"), True, True),
        ListColumn(
            "retries",
            "Retries",
            lambda group: by_name[group.name].waiting_retries if group.name in by_name else -1,
            True,
            True,
        ),
        ListColumn(
            "dead",
            "Dead letters",
            lambda group: by_name[group.name].dead_letters if group.name in by_name else -1,
            True,
            True,
        ),
        ListColumn(
            "rate",
            "Acks/s",
            lambda group: by_name[group.name].acks_per_s if group.name in by_name else -1,
            True,
            True,
        ),
        ListColumn(
            "members",
            "Receivers",
            lambda group: len(by_name[group.name].members) if group.name in by_name else -1,
            True,
            True,
        ),
        ListColumn("created", "Created", lambda group: group.created_at_ms),
    ]
    listing = ListView(request.query_params, columns, "name")
    await listing.ask(listed.groups, lambda group: group.name, describe)
    return page(
        request,
        "groups.html",
        listing=listing,
        by_name=by_name,
        sums=sums,
        refused=found.refused,
        all_count=len(listed.groups),
    )


async def group(request: Request) -> Response:
    return await _group(request, request.path_params["name"])


async def _group(
    request: Request,
    name: str,
    form: dict[str, str] | None = None,
    faults: dict[str, str] | None = None,
    error: GatewayError | None = None,
) -> Response:
    described = await call(request, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
    policy = described.group.retry
    fields = {"backoff": backoff_of(policy), "max_attempts": str(policy.max_attempts)}
    fields |= dict.fromkeys(("rate", "per_key", "topic"), "")
    return page(
        request,
        "group.html",
        described=described,
        group=described.group,
        start=_STARTS.get(described.group.start, "earliest"),
        sums=sums_of(described),
        topics=sorted({queue.topic for queue in described.queues}),
        limits=[(one.topic, rates.limit_text(one), one.declared) for one in described.group.limits.limits],
        form=fields | (form or {}),
        faults=faults or {},
        error=error,
        status=error.status if error else 422 if faults else 200,
    )


async def new_group(request: Request) -> Response:
    form = {"name": "", "start": "earliest", "start_at": "", "ordered": "", "backoff": "", "max_attempts": ""}
    return page(request, "group_new.html", form=form, faults={}, error=None)


async def create_group(request: Request) -> Response:
    form = await request.form()
    names = ("name", "start", "start_at", "ordered", "backoff", "max_attempts")
    values = {name: str(form.get(name, "")).strip() for name in names}
    faults: dict[str, str] = {}
    wanted = consumer_pb2.Group(name=values["name"], ordered=values["ordered"] == "1")
    if not values["name"]:
        faults["name"] = "a group needs a name"
    if values["start"] == "latest":
        wanted.start = consumer_pb2.GROUP_START_LATEST
    elif values["start"] == "time":
        wanted.start = consumer_pb2.GROUP_START_TIME
        try:
            wanted.start_at_ms = moment_ms(values["start_at"])
        except InvalidMoment as fault:
            faults["start_at"] = str(fault)
    _take_policy(values, wanted.retry, faults)
    error = None
    # The call itself returns an existing group with the same settings.
    known = consumer_pb2.DescribeGroupRequest(name=values["name"])
    if not faults and not isinstance(await asked(request, "DescribeGroup", known), GatewayError):
        faults["name"] = f"group {values['name']} exists"
    if not faults:
        made = await asked(request, "CreateGroup", consumer_pb2.CreateGroupRequest(group=wanted))
        if not isinstance(made, GatewayError):
            return RedirectResponse(path_of("groups", made.name), 303)
        error = made
        faults = {one.field.removeprefix("group."): one.description for one in made.violations}
    status = error.status if error else 422
    return page(request, "group_new.html", form=values, faults=faults, error=error, status=status)


def _take_policy(values: dict[str, str], into: Any, faults: dict[str, str]) -> None:
    """Fills a retry policy from the fields `backoff` and `max_attempts`; the server sets the default for empty ones."""
    attempts = values["max_attempts"]
    if attempts and not (attempts.isascii() and attempts.isdigit() and len(attempts) < 6):
        faults["max_attempts"] = f"{attempts!r} is not a whole number"
        return
    try:
        policy = handler_policy(values["backoff"] or None, int(attempts) if attempts else None)
    except InvalidArgument as error:
        faults["max_attempts" if str(error).startswith("max_attempts") else "backoff"] = str(error)
        return
    if policy is not None:
        into.CopyFrom(policy)


async def change_policy(request: Request) -> Response:
    name, form = request.path_params["name"], await request.form()
    values = {field: str(form.get(field, "")).strip() for field in ("backoff", "max_attempts")}
    faults: dict[str, str] = {}
    wanted = consumer_pb2.UpdateGroupRequest(name=name)
    _take_policy(values, wanted.retry, faults)
    error = None
    if not faults:
        changed = await asked(request, "UpdateGroup", wanted)
        if not isinstance(changed, GatewayError):
            return RedirectResponse(path_of("groups", name), 303)
        error = changed
    return await _group(request, name, values, faults, error)


async def change_limit(request: Request) -> Response:
    name, form = request.path_params["name"], await request.form()
    values = {field: str(form.get(field, "")).strip() for field in ("rate", "per_key", "topic")}
    faults: dict[str, str] = {}
    wanted = consumer_pb2.LimitGroupRequest(name=name)
    wanted.limit.topic = values["topic"]
    if values["rate"]:
        try:
            rates.fill(wanted.limit.rate, values["rate"])
        except ValueError as fault:
            faults["rate"] = str(fault)
    if values["per_key"]:
        if values["per_key"].isascii() and values["per_key"].isdigit() and len(values["per_key"]) < 6:
            wanted.limit.per_key = int(values["per_key"])
        else:
            faults["per_key"] = f"{values['per_key']!r} is not a whole number"
    error = None
    if not faults:
        changed = await asked(request, "LimitGroup", wanted)
        if not isinstance(changed, GatewayError):
            return RedirectResponse(path_of("groups", name), 303)
        error = changed
        faults = {one.field.removeprefix("limit."): one.description for one in changed.violations}
    return await _group(request, name, values, faults, error)


class ResetTarget:
    """The target of a reset in its form: `to` is `earliest`, `latest`, `time` (with `at`) or `offset` (with `queue` and
    `offset`)."""

    FIELDS = ("topic", "queue", "to", "at", "offset")

    def __init__(self, form: QueryParams | FormData) -> None:
        self.values = {name: str(form.get(name, "")).strip() for name in self.FIELDS}
        self.faults: dict[str, str] = {}

    @property
    def is_given(self) -> bool:
        return bool(self.values["topic"] or self.values["to"])

    def request(self, group: str, *, dry_run: bool) -> consumer_pb2.ResetGroupRequest:
        """Adds errors to `faults`."""
        values = self.values
        made = consumer_pb2.ResetGroupRequest(name=group, topic=values["topic"], dry_run=dry_run)
        if not values["topic"]:
            self.faults["topic"] = "choose a topic"
        if values["queue"]:
            self._number("queue", lambda number: setattr(made, "queue", number))
        if values["to"] == "earliest":
            made.earliest = True
        elif values["to"] == "latest":
            made.latest = True
        elif values["to"] == "offset":
            if not values["queue"]:
                self.faults["queue"] = "an offset needs a queue"
            self._number("offset", lambda number: setattr(made, "offset", number))
        elif values["to"] == "time":
            try:
                made.at_ms = moment_ms(values["at"])
            except InvalidMoment as fault:
                self.faults["at"] = str(fault)
        else:
            self.faults["to"] = "choose a target"
        return made

    def _number(self, field: str, take: Any) -> None:
        text = self.values[field]
        if text.isascii() and text.isdigit() and len(text) < 19:
            take(int(text))
        else:
            self.faults[field] = f"{text!r} is not a whole number"


async def reset(request: Request) -> Response:
    """The form, with its effect below."""
    return await _reset(request, ResetTarget(request.query_params))


async def _reset(request: Request, where: ResetTarget, error: GatewayError | None = None) -> Response:
    name = request.path_params["name"]
    described = await call(request, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
    answer = None
    if where.is_given and error is None:
        wanted = where.request(name, dry_run=True)
        if not where.faults:
            answer = await asked(request, "ResetGroup", wanted)
            if isinstance(answer, GatewayError):
                answer, error = None, answer
    topics = sorted({queue.topic for queue in described.queues})
    return page(
        request,
        "group_reset.html",
        group=described.group,
        form=where.values,
        topics=topics,
        faults=where.faults,
        error=error,
        queues=None if answer is None else answer.queues,
        again=sum(max(one.from_offset - one.to_offset, 0) for one in answer.queues) if answer else 0,
        skipped=sum(max(one.to_offset - one.from_offset, 0) for one in answer.queues) if answer else 0,
        leases_ended=sum(one.leases_ended for one in answer.queues) if answer else 0,
        retries_ended=sum(one.retries_ended for one in answer.queues) if answer else 0,
        status=error.status if error else 422 if where.faults else 200,
    )


async def do_reset(request: Request) -> Response:
    where = ResetTarget(await request.form())
    wanted = where.request(request.path_params["name"], dry_run=False)
    if where.faults:
        return await _reset(request, where)
    done = await asked(request, "ResetGroup", wanted)
    if isinstance(done, GatewayError):
        return await _reset(request, where, done)
    return RedirectResponse(path_of("groups", wanted.name), 303)


ROUTES = [
    Route("/groups", groups),
    Route("/groups", create_group, methods=["POST"]),
    Route("/groups/new", new_group),
    Route("/groups/{name}", group),
    Route("/groups/{name}/policy", change_policy, methods=["POST"]),
    Route("/groups/{name}/limit", change_limit, methods=["POST"]),
    Route("/groups/{name}/reset", reset),
    Route("/groups/{name}/reset", do_reset, methods=["POST"]),
]
