"""The cost of idle RocketMQ push consumers to a cluster."""

import asyncio
import multiprocessing
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any

import grpc
import uvloop
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from bench.processes import NAMES, Processes, cpu_s, memory_mb
from bench.rocketmq_echo import SERVICE

GROUPS = 10
# Intervals of RocketMQ's clients.
HEARTBEAT_S, POLL_S, ASSIGNMENT_S, TIMEOUT_S = 10, 20, 5, 3
SETTLED_S, MEASURED_S = 12.0, 20.0
STARTED_AT_ONCE = 50


def idle(cluster: Processes, count: int) -> dict[str, Any]:
    """Memory and share of a core by process, without and with the consumers."""
    before, before_cpu = _memory(cluster), _shares(cluster, MEASURED_S / 3)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(cluster.address, count, theirs), daemon=True)
    process.start()
    # Closed here, so that the end of the process is the end of the pipe.
    theirs.close()
    try:
        ours.recv()
        # The first polls and the start have ended.
        time.sleep(SETTLED_S)
        with_cpu = _shares(cluster, MEASURED_S)
        memory = _memory(cluster)
    finally:
        process.terminate()
        process.join()
    processes = {
        name: {
            "before_mb": before[name],
            "with_mb": memory[name],
            "before_cpu": before_cpu[name],
            "with_cpu": with_cpu[name],
        }
        for name in NAMES
    }
    return {"count": count, "processes": processes}


def _memory(cluster: Processes) -> dict[str, float]:
    return {name: memory_mb(pid)[0] for name, pid in cluster.pids().items()}


def _shares(cluster: Processes, seconds: float) -> dict[str, float]:
    """Shares of one core, by process."""
    pids = cluster.pids()
    began = {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    return {name: (cpu_s(pid) - began[name]) / seconds for name, pid in pids.items()}


def _run(address: str, count: int, pipe: Connection) -> None:
    most = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_consumers(address, count, pipe))


async def _consumers(address: str, count: int, pipe: Connection) -> None:
    started = asyncio.Semaphore(STARTED_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(count)]
        for number, event in enumerate(ready):
            group.create_task(_consumer(address, number, started, event))
        for event in ready:
            await event.wait()
        pipe.send("ready")


async def _consumer(address: str, number: int, started: asyncio.Semaphore, ready: asyncio.Event) -> None:
    """One client with its own connection, stream of Telemetry, poll and timers."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    metadata = (("x-mq-client-id", f"idle-{number}"),)
    group = pb.Resource(name=f"idle-{number % GROUPS}")
    topic = pb.Resource(name="idle")
    host, _, port = address.rpartition(":")
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])

    async with grpc.aio.insecure_channel(address, options=options) as channel:

        async def call(name: str, **fields: Any) -> Any:
            stub = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=lambda one: one.SerializeToString(),
                response_deserializer=getattr(pb, f"{name}Response").FromString,
            )
            return await stub(getattr(pb, f"{name}Request")(**fields), metadata=metadata, timeout=30)

        async def tried(name: str, **fields: Any) -> None:
            """Ignores late calls on a busy machine; clients make the next call regardless."""
            with suppress(grpc.aio.AioRpcError):
                await call(name, **fields)

        async def poll() -> None:
            request = pb.ReceiveMessageRequest(group=group, batch_size=32, auto_renew=True)
            request.message_queue.topic.CopyFrom(topic)
            request.long_polling_timeout.seconds = POLL_S
            stub = channel.unary_stream(
                f"/{SERVICE}/ReceiveMessage",
                request_serializer=pb.ReceiveMessageRequest.SerializeToString,
                response_deserializer=pb.ReceiveMessageResponse.FromString,
            )
            while True:
                with suppress(grpc.aio.AioRpcError):
                    async for frame in stub(request, metadata=metadata, timeout=POLL_S + TIMEOUT_S):
                        assert frame.status.code == pb.MESSAGE_NOT_FOUND, frame

        async def every(seconds: float, name: str, **fields: Any) -> None:
            while True:
                await asyncio.sleep(seconds)
                await tried(name, **fields)

        async with started:
            await call("QueryRoute", topic=topic, endpoints=endpoints)
            telemetry: Any = channel.stream_stream(
                f"/{SERVICE}/Telemetry",
                request_serializer=pb.TelemetryCommand.SerializeToString,
                response_deserializer=pb.TelemetryCommand.FromString,
            )
            stream = telemetry(metadata=metadata)
            settings = pb.Settings(client_type=pb.PUSH_CONSUMER, access_point=endpoints)
            settings.subscription.group.CopyFrom(group)
            await stream.write(pb.TelemetryCommand(settings=settings))
            assert (await stream.read()).status.code == pb.OK
        ready.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poll())
            tasks.create_task(every(HEARTBEAT_S, "Heartbeat", client_type=pb.PUSH_CONSUMER, group=group))
            tasks.create_task(every(ASSIGNMENT_S, "QueryAssignment", topic=topic, group=group, endpoints=endpoints))
