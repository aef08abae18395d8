#!/bin/sh
# grpcio 1.85.1 sends a server up to 1 % more time than its client waits.
#
# The header `grpc-timeout` has room for eight digits of a unit, so 1,001 s could be exact. The C core rounds it up to
# about two digits: 10 s here. `time_remaining()` of the server starts at 1,010 s, while the client stops after 1,001 s.
# A server that passes its remaining time to a third one adds as much again.
#
# Consequence: a long poll of 1,001 s that the server ends 5 s before the deadline has failed for the client before, and
# the message in the answer is lost to it.
# Remedy: a margin of 2 %, or the wait as a field of the request.
#
# Output: 1.85.1 Python 3.11.7
#         timeout 1.001 s: the server has 1.01 s
#         timeout 30.05 s: the server has 30.1 s
#         timeout 1001 s: the server has 1010 s
#         timeout 100001 s: the server has 100200 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.1
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from concurrent.futures import ThreadPoolExecutor

import grpc

EXPECTED = {1.001: 1.01, 30.05: 30.1, 1001: 1010, 100001: 100200}
remaining: list[float] = []


def note(request: bytes, context: grpc.ServicerContext) -> bytes:
    remaining.append(context.time_remaining())
    return request


print(grpc.__version__, "Python", platform.python_version())
server = grpc.server(ThreadPoolExecutor(1))
method = {"Note": grpc.unary_unary_rpc_method_handler(note)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", method),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    call = channel.unary_unary("/a.B/Note")
    call(b"x", wait_for_ready=True)
    for timeout, expected in EXPECTED.items():
        call(b"x", timeout=timeout)
        print(f"timeout {timeout} s: the server has {expected} s")
        # A busy machine takes some of the time before the handler reads it.
        assert timeout < remaining[-1] <= expected, f"changed: {remaining[-1]}"
server.stop(None)
PROGRAM
