"""Tasks have a parent that waits for them: an `asyncio.TaskGroup`.

A task of the loop alone is lost when no reference holds it, and its exception with it. Each function that makes one is
listed here, with the code that holds it, ends it and takes its result.
"""

import ast
from collections.abc import Iterator

from tests.tidy.sources import PRODUCT, files, name, tree

RACE = "waits for the first of two events, and cancels the other in `finally`"
LOOPS = "the node's task group; `failed` awaits it, `stop` cancels it"
ALLOWED = {
    "console/duetime_console/api/operations.py": RACE,
    "core/duetime_core/rpc/leasestreams.py": "held by its stream, which ends it and waits for it",
    "core/duetime_core/rpc/failover.py": "watches a connection; cancelled and awaited by `close`",
    "core/duetime_core/metadata/database.py": "awaited by the `stop` that makes it",
    "core/duetime_core/node/life.py": RACE,
    "core/duetime_core/together.py": "awaited by the function that makes it, in the variables of a node",
    "core/duetime_core/within/call.py": "writes requests; cancelled when its call is settled",
    "core/duetime_core/within/channel.py": "waits for a server; held in a set, cancelled when its call is settled",
    "core/duetime_core/within/server.py": "a call; held until done, cancelled with it, awaited by `stop`",
    "core/duetime_core/testing/cluster.py": "held by node until it stops; or awaited by the function that makes it",
    "sdk/duetime/cli/up.py": RACE,
    "sdk/duetime/cli/worker.py": "held, cancelled and awaited by the run that makes it",
    "sdk/duetime/tls.py": "closes a channel that was replaced; held until done, and awaited by `close`",
    "sdk/duetime/client/sync/background.py": "held by its object, which hands on its result",
    "sdk/duetime/client/consuming/consumer.py": "held by the consumer, awaited by `close`; and races",
    "sdk/duetime/client/tasks/schedules.py": "cancelled and awaited by the run that makes it",
    "sdk/duetime/client/sending/gatherer.py": "held in a set until done; awaited by `close`",
    "sdk/duetime/client/sending/handing.py": "held in a set until done; `close` waits for its call",
    "sdk/duetime/client/sending/checking.py": "held by group and by transaction until done; awaited by `close`",
    "sdk/duetime/client/consuming/handling.py": "held in a set until done; awaited by the drain",
    "sdk/duetime/client/streaming.py": "held in a set until done; awaited by `end`",
    "sdk/duetime/client/consuming/puller.py": "held by the puller, which raises its error and cancels it in `close`",
    "sdk/duetime/client/consuming/subscription.py": "gives credit: held by its stream, which cancels it in `finally`",
    "sdk/duetime/client/consuming/settling.py": "held by the settling, awaited by `close`",
    "services/producer_gw/duetime_gateway/node.py": LOOPS,
    "services/retry/duetime_retry/exhausted.py": RACE,
    "services/retry/duetime_retry/node.py": LOOPS,
    "services/scheduler/duetime_scheduler/lane.py": "pulls and puts: held by the lane's loop, cancelled in `finally`",
    "services/scheduler/duetime_scheduler/node.py": LOOPS,
    "services/webhooks/duetime_webhooks/node.py": LOOPS,
    "services/store/duetime_store/recovery/checkpointer.py": RACE,
    "services/store/duetime_store/finding/finder.py": RACE,
    "services/store/duetime_store/node.py": LOOPS,
    "services/store/duetime_store/writing/streams.py": "held by its stream, which ends it and waits for it",
    "services/store/duetime_store/writing/watch.py": RACE,
}
MAKERS = ("create_task", "ensure_future")


def loose_tasks(module: ast.Module) -> Iterator[int]:
    """Lines with `asyncio.create_task`, `asyncio.ensure_future`, or `create_task` of a loop."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (node.lineno for alias in node.names if alias.name in MAKERS)
        elif isinstance(node, ast.Attribute) and node.attr in MAKERS:
            owner = ast.unparse(node.value)
            if owner == "asyncio" or owner.split(".")[-1] in (
                "loop",
                "_loop",
                "get_running_loop()",
                "get_event_loop()",
            ):
                yield node.lineno


def test_tasks_without_a_group_are_made_where_listed() -> None:
    found = {name(path): list(loose_tasks(tree(path))) for path in files(*PRODUCT)}
    assert {path: lines for path, lines in found.items() if lines and path not in ALLOWED} == {}
    assert [path for path in ALLOWED if not found.get(path)] == []


def test_check_sees_every_way_to_make_a_task() -> None:
    ways = """
from asyncio import ensure_future
asyncio.create_task(work())
asyncio.get_running_loop().create_task(work())
make = loop.create_task
self._loop.create_task(work())
group.create_task(work())
"""
    assert sorted(loose_tasks(ast.parse(ways))) == [2, 3, 4, 5, 6]
