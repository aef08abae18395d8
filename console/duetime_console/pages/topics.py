"""Topics: the list, each one with its queues, rates and groups, and a form for new ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

from duetime.client.errors import InvalidArgument
from duetime.client.message import delay_ms
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2
from duetime_format.limits import LITE_PAGE_COUNT
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.asking import asked, path_of
from duetime_console.gateway import GatewayError
from duetime_console.lists import ListColumn, ListView
from duetime_console.pages.groups import described_groups
from duetime_console.rendering import page
from duetime_console.session import call, viewer_of

TYPES = {name.removeprefix("TOPIC_TYPE_").lower(): number for name, number in gateway_pb2.TopicType.items()}
_TYPE_NAMES = {number: name for name, number in TYPES.items()}
# Rates need a call for each queue: topics with more queues show none.
_RATED_QUEUES_MAX = 64
_RATE_MS = 60_000
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "SCHEDULE_TOPIC_", "RMQ_SYS_", "DT_", "rmq_sys_", "TBW102", "SELF_TEST_TOPIC")


def is_system(name: str) -> bool:
    """Whether the topic was not created by users."""
    return name.startswith(_SYSTEM_PREFIXES)


def type_of(topic: gateway_pb2.Topic) -> str:
    return _TYPE_NAMES.get(topic.message_type, "any")


async def topics(request: Request) -> Response:
    listed, backlog = await asyncio.gather(
        call(request, "ListTopics", gateway_pb2.ListTopicsRequest()),
        asked(request, "Backlog", pending_pb2.BacklogRequest(all_lanes_together=True)),
    )
    pending = _pending_by_topic(backlog)
    pauses = {pause.topic: pause for pause in listed.pauses}
    columns: list[ListColumn[Any]] = [
        ListColumn("name", "Topic", lambda topic: topic.name.lower()),
        ListColumn("queues", "Queues", lambda topic: topic.queue_count, is_number=True),
        ListColumn("pending", "Pending", lambda topic: pending.get(topic.name, (0, 0))[0], is_number=True),
        ListColumn("due", "Next due by", lambda topic: pending.get(topic.name, (0, 0))[1] or float("inf")),
        ListColumn("type", "For", type_of),
        ListColumn("created", "Created", lambda topic: topic.created_at_ms),
    ]
    listing = ListView(request.query_params, columns, "name", kept=["system"])
    with_system = request.query_params.get("system") == "1"
    shown = [topic for topic in listed.topics if with_system or not is_system(topic.name)]
    listing.show(shown, lambda topic: f"{topic.name} {type_of(topic)}")
    return page(
        request,
        "topics.html",
        listing=listing,
        pending=pending,
        backlog=backlog,
        type_of=type_of,
        pauses=pauses,
        with_system=with_system,
        all_count=len(shown),
        deleted=request.query_params.get("deleted", ""),
    )


def _pending_by_topic(backlog: Any) -> dict[str, tuple[int, int]]:
    """Number of pending messages, and the end of the bucket with the next one (Unix ms); empty if not permitted."""
    found: dict[str, tuple[int, int]] = {}
    for bucket in getattr(backlog, "buckets", ()):
        count, first_ms = found.get(bucket.topic, (0, bucket.due_from_ms + bucket.width_ms))
        found[bucket.topic] = count + bucket.count, first_ms
    return found


async def topic(request: Request) -> Response:
    name = request.path_params["name"]
    described, backlog, groups = await asyncio.gather(
        call(request, "DescribeTopic", gateway_pb2.DescribeTopicRequest(name=name)),
        asked(request, "Backlog", pending_pb2.BacklogRequest(topic=name, all_lanes_together=True)),
        described_groups(request),
    )
    rates = await _rates(request, described, getattr(backlog, "now_ms", 0))
    after = request.query_params.get("after", "")
    lites = await _lites(request, described.topic, after)
    listed: Sequence[gateway_pb2.LiteTopic] = getattr(lites, "lite_topics", ())
    return page(
        request,
        "topic.html",
        topic=described.topic,
        type_name=type_of(described.topic),
        queues=described.queues,
        stored=sum(queue.max_offset - queue.min_offset for queue in described.queues),
        backlog=backlog,
        rates=rates,
        lites=lites,
        asked_after=after,
        lites_after=listed[-1].name if len(listed) == LITE_PAGE_COUNT else "",
        rate=sum(rates.values()) if rates else None,
        readers=_readers(name, groups.groups),
        groups_left_out=groups.left_out,
        pause=described.pause if described.HasField("pause") else None,
        can_delete=viewer_of(request).may("DeleteTopic") and not is_system(name),
    )


async def _lites(request: Request, topic: gateway_pb2.Topic, after: str) -> Any:
    """A page of the topic's lite topics, or its error; None: the topic is of another type."""
    if topic.message_type != gateway_pb2.TOPIC_TYPE_LITE:
        return None
    return await asked(request, "ListLiteTopics", gateway_pb2.ListLiteTopicsRequest(topic=topic.name, after=after))


async def _rates(request: Request, described: gateway_pb2.TopicDescription, now_ms: int) -> dict[int, float]:
    """Messages stored per second over the last minute, by queue. Empty: too many queues, or no right to read."""
    if not now_ms or len(described.queues) > _RATED_QUEUES_MAX:
        return {}
    name = described.topic.name
    answers = await asyncio.gather(
        *(
            asked(
                request,
                "SearchOffset",
                gateway_pb2.SearchOffsetRequest(topic=name, queue=queue.queue, at_ms=now_ms - _RATE_MS),
            )
            for queue in described.queues
        )
    )
    if any(isinstance(answer, GatewayError) for answer in answers):
        return {}
    return {
        queue.queue: max(queue.max_offset - answer.offset, 0) / (_RATE_MS / 1000)
        for queue, answer in zip(described.queues, answers, strict=True)
    }


def _readers(name: str, groups: list[consumer_pb2.GroupDescription]) -> list[dict[str, Any]]:
    """Groups with offsets in the topic."""
    return [
        {
            "name": group.group.name,
            "lag": sum(queue.lag for queue in group.queues if queue.topic == name),
            "in_flight": sum(queue.in_flight for queue in group.queues if queue.topic == name),
            "waiting": sum(queue.waiting for queue in group.queues if queue.topic == name),
            "members": sum(member.topic == name for member in group.members),
        }
        for group in groups
        if any(queue.topic == name for queue in group.queues)
    ]


# Fields of the form by those of the request, if the names differ.
_FIELDS = {"queue_count": "queues", "max_delay_ms": "max_delay"}


async def new_topic(request: Request) -> Response:
    form = {"name": request.query_params.get("name", ""), "queues": "", "max_delay": "", "type": "any"}
    return page(request, "topic_new.html", form=form, types=TYPES, faults={}, error=None)


async def create_topic(request: Request) -> Response:
    form = await request.form()
    values = {name: str(form.get(name, "")).strip() for name in ("name", "queues", "max_delay", "type")}
    faults: dict[str, str] = {}
    wanted = gateway_pb2.CreateTopicRequest(name=values["name"])
    if not values["name"]:
        faults["name"] = "a topic needs a name"
    if values["queues"]:
        if values["queues"].isascii() and values["queues"].isdigit() and len(values["queues"]) < 6:
            wanted.queue_count = int(values["queues"])
        else:
            faults["queues"] = f"{values['queues']!r} is not a whole number"
    if values["max_delay"]:
        try:
            wanted.max_delay_ms = delay_ms(values["max_delay"])
        except InvalidArgument:
            faults["max_delay"] = f"{values['max_delay']!r} is not a length such as 2h or 30d"
    wanted.message_type = TYPES.get(values["type"], 0)  # type: ignore[assignment]
    error = None
    # The call itself returns an existing topic with the same settings.
    known = gateway_pb2.DescribeTopicRequest(name=values["name"])
    if not faults and not isinstance(await asked(request, "DescribeTopic", known), GatewayError):
        faults["name"] = f"topic {values['name']} exists"
    if not faults:
        made = await asked(request, "CreateTopic", wanted)
        if not isinstance(made, GatewayError):
            return RedirectResponse(path_of("topics", made.name), 303)
        error = made
        faults = {_FIELDS.get(one.field, one.field): one.description for one in made.violations}
    return page(
        request,
        "topic_new.html",
        form=values,
        types=TYPES,
        faults=faults,
        error=error,
        status=error.status if error else 422,
    )


async def pause(request: Request) -> Response:
    return await _set_paused(request, "PauseTopic", gateway_pb2.PauseTopicRequest())


async def resume(request: Request) -> Response:
    return await _set_paused(request, "ResumeTopic", gateway_pb2.ResumeTopicRequest())


async def _set_paused(request: Request, method: str, wanted: Any) -> Response:
    wanted.name = request.path_params["name"]
    await call(request, method, wanted)
    return RedirectResponse(path_of("topics", wanted.name), 303)


ROUTES = [
    Route("/topics", topics),
    Route("/topics", create_topic, methods=["POST"]),
    Route("/topics/new", new_topic),
    Route("/topics/{name}/pause", pause, methods=["POST"]),
    Route("/topics/{name}/resume", resume, methods=["POST"]),
    Route("/topics/{name}", topic),
]
