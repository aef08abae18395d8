#!/bin/sh
# grpcio 1.85.1: `grpc.keepalive_timeout_ms` does not shorten the wait for the answer to a ping.
#
# A call waits for a server that has stopped answering. Pings go out every second; the channel should give up a second
# after one is not answered. It gives up after a minute, the default of another option: `grpc.http2.ping_timeout_ms`.
#
# Consequence: a client with a keepalive of 1 s and a timeout of 1 s notices a hanging server after 61 s.
# Remedy: set both options.
#
# Output: 1.85.1
#         keepalive_timeout_ms=1000: no end within 20 s
#         with http2.ping_timeout_ms=1000: ends within 5 s: Stream removed (ping timeout)
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.1
cat >"$folder/ping.py" <<'PROGRAM'
import signal
import subprocess
import sys
import time

import grpc

SERVER = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import grpc

def echo(request, context):
    return request

def wait(request, context):
    threading.Event().wait(60)
    return request

server = grpc.server(ThreadPoolExecutor(2))
handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo), "Wait": grpc.unary_unary_rpc_method_handler(wait)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""
KEEPALIVE = (("grpc.keepalive_time_ms", 1_000), ("grpc.keepalive_timeout_ms", 1_000), ("grpc.http2.max_pings_without_data", 0))


def end_of_a_call(options, limit_s):
    """The text with which a call to a stopped server ends."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}", options=options) as channel:
            channel.unary_unary("/a.B/Echo")(b"x", timeout=30, wait_for_ready=True)
            server.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            try:
                channel.unary_unary("/a.B/Wait")(b"x", timeout=limit_s)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return f"no end within {limit_s} s"
                assert time.monotonic() - began < 5, time.monotonic() - began
                return f"ends within 5 s: {error.details()}"
    finally:
        server.kill()
        server.wait()


print(grpc.__version__)
first = end_of_a_call(KEEPALIVE, 20)
print("keepalive_timeout_ms=1000:", first)
second = end_of_a_call((*KEEPALIVE, ("grpc.http2.ping_timeout_ms", 1_000)), 20)
print("with http2.ping_timeout_ms=1000:", second)
assert first == "no end within 20 s"
assert second.startswith("ends within 5 s")
PROGRAM
"$folder/venv/bin/python" "$folder/ping.py"
