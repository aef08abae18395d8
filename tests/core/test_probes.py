"""Health as probes ask for it: by gRPC and by HTTP, of a real process."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from duetime_core.rpc.probes import LIVENESS
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.core.test_node import DEADLINE_S, Process

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def page(ready: dict[str, object], path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check(ready: dict[str, object], service: str) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{ready['port']}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_S).status)


def test_process_that_is_well_is_ready_and_alive(started: list[Process]) -> None:
    started.append(Process())
    ready = started[0].ready()
    assert [check(ready, name) for name in ("", "sample", LIVENESS)] == [SERVING] * 3
    assert page(ready, "/readyz") == (200, "ready\n")
    assert page(ready, "/healthz") == (200, "alive\n")
    assert "duetime_build_info" in page(ready, "/metrics")[1]


def test_stuck_process_is_ready_but_not_alive_with_a_reason(started: list[Process]) -> None:
    started.append(Process("--fail", "stuck", "--log-format", "json"))
    ready = started[0].ready()
    assert [check(ready, name) for name in ("", LIVENESS, LIVENESS)] == [SERVING, NOT_SERVING, NOT_SERVING]
    assert page(ready, "/healthz") == (503, "stuck: lane 0/1 does not move\n")
    assert page(ready, "/readyz") == (200, "ready\n")
    started[0].popen.terminate()
    assert started[0].end()[2].count('"stuck"') == 1


def test_loop_that_hangs_is_not_alive(started: list[Process]) -> None:
    started.append(Process("--fail", "block"))
    ready = started[0].ready()
    assert page(ready, "/healthz") == (503, "the event loop does not answer within 0.2 s\n")
    assert page(ready, "/metrics")[0] == 200


def test_unknown_service_is_unknown(started: list[Process]) -> None:
    started.append(Process())
    ready = started[0].ready()
    with pytest.raises(grpc.RpcError) as caught:
        check(ready, "startup")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
