"""A gateway with defects that could leak secrets into logs: `python -m tests.hostile.careless`.

Exceptions of its handlers have their arguments in their texts, as Python's own do. By TEST_CARELESS it also leaks data
that a gateway must never log, for the search to find: `line`, `encoded`, `audit`.
"""

import base64
import os
import runpy
from typing import Any

import structlog
from duetime_core.audit.audit import name_resource
from duetime_gateway.face.topic_service import TopicService
from duetime_gateway.sending.sender import Sender

CARELESS = "TEST_CARELESS"
CRASH = b"crash"

log = structlog.get_logger()
_begin = Sender.begin


async def _begin_or_crash(self: Sender, request: Any, *arguments: Any, **options: Any) -> Any:
    drafts = request.drafts()
    for draft in (drafts[index] for index in range(len(drafts))):
        if draft.body.startswith(CRASH):
            raise UnicodeDecodeError("utf-8", draft.body, 0, 1, str(draft.properties))
    return await _begin(self, request, *arguments, **options)


async def _create_topic(self: TopicService, request: Any, context: Any) -> Any:
    text = f"{request.name} {context.invocation_metadata()}"
    if careless == "line":
        log.info("topic created", text=text)
    if careless == "encoded":
        log.info("topic created", text=base64.b64encode(text.encode()).decode())
    if careless == "audit":
        name_resource(text[-255:])
    raise KeyError(text)


if __name__ == "__main__":
    careless = os.environ.pop(CARELESS, "")
    Sender.begin = _begin_or_crash  # type: ignore[method-assign]
    TopicService.create_topic = _create_topic  # type: ignore[method-assign]
    runpy.run_module("duetime_gateway", run_name="__main__")
