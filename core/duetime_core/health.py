"""`python -m duetime_core.health HOST:PORT`: queries a process's gRPC health, for container health checks.

Exit code 0: SERVING; 1: anything else, in one line; 2: usage.
"""

import argparse
import sys

import grpc
from duetime_format.printing import echo
from grpc_health.v1 import health_pb2, health_pb2_grpc

from duetime_core.rpc.channels import make_blocking_channel

TIMEOUT_S = 3.0


def health_of(address: str, service: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """The name of the health status, such as SERVING, or of the gRPC status if there was no answer."""
    with make_blocking_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m duetime_core.health", description="Queries a process's health.")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--service", default="", help="of one service; default: the process as a whole")
    options = parser.parse_args(arguments)
    found = health_of(options.address, options.service)
    echo(found)
    return 0 if found == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
