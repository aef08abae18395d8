#!/bin/sh
# rocketmq-python-client 5.1.2 documents the delivery time of a message in milliseconds and sends it as seconds.
#
# The docstring of `delivery_timestamp` has milliseconds, and a received message has them. The number goes unchanged into
# the seconds of the request; its nanoseconds stay 0, and a float is a TypeError. The clients in Java, Go and Node send
# milliseconds. The server here notes the requests and answers each call of the protocol with OK.
#
# Consequence: a time as documented, or the own time of a received message, asks for a year beyond 50,000, which is not a
# valid timestamp of protobuf. No delivery time falls within a second.
# Remedy: whole seconds, rounded up.
#
# Output: 5.1.2 Python 3.11.7
#         1795000000 is sent as 1795000000 s and 0 ns, received as 1795000000000
#         1795000000.9 is a TypeError
#         1795000000900 is sent as 1795000000900 s and 0 ns, received as 1795000000900000
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rocketmq-python-client==5.1.2
HOME=$folder "$folder/venv/bin/python" - <<'PROGRAM'
import os
import platform
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import grpc
from rocketmq import ClientConfiguration, Credentials, Message, Producer
from rocketmq.grpc_protocol import definition_pb2, service_pb2, service_pb2_grpc

EXPECTED = {
    1_795_000_000: "is sent as 1795000000 s and 0 ns, received as 1795000000000",
    1_795_000_000.9: "is a TypeError",
    1_795_000_000_900: "is sent as 1795000000900 s and 0 ns, received as 1795000000900000",
}
OK = definition_pb2.Status(code=definition_pb2.OK)
sent: list[definition_pb2.Message] = []


class Server(service_pb2_grpc.MessagingServiceServicer):
    def QueryRoute(self, request, context):
        broker = definition_pb2.Broker(name="broker", endpoints=request.endpoints)
        queue = definition_pb2.MessageQueue(topic=request.topic, permission=definition_pb2.READ_WRITE, broker=broker)
        queue.accept_message_types.append(definition_pb2.DELAY)
        return service_pb2.QueryRouteResponse(status=OK, message_queues=[queue])

    def Telemetry(self, commands, context):
        for command in commands:
            if not command.HasField("settings"):
                continue
            command.settings.publishing.max_body_size = 1 << 22
            command.settings.backoff_policy.max_attempts = 1
            yield service_pb2.TelemetryCommand(status=OK, settings=command.settings)

    def Heartbeat(self, request, context):
        return service_pb2.HeartbeatResponse(status=OK)

    def NotifyClientTermination(self, request, context):
        return service_pb2.NotifyClientTerminationResponse(status=OK)

    def SendMessage(self, request, context):
        sent.extend(request.messages)
        entry = service_pb2.SendResultEntry(status=OK, message_id=request.messages[0].system_properties.message_id)
        return service_pb2.SendMessageResponse(status=OK, entries=[entry])


def send(producer: Producer, time: float) -> str:
    message = Message()
    message.topic, message.body, message.delivery_timestamp = "topic", b"text", time
    try:
        producer.send(message)
    except TypeError:
        return "is a TypeError"
    due = sent[-1].system_properties.delivery_timestamp
    received = Message().fromProtobuf(sent[-1]).delivery_timestamp
    return f"is sent as {due.seconds} s and {due.nanos} ns, received as {received}"


def main() -> None:
    print(version("rocketmq-python-client"), "Python", platform.python_version())
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_MessagingServiceServicer_to_server(Server(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    producer = Producer(ClientConfiguration(address, Credentials()), ("topic",), tls_enable=False)
    producer.startup()
    for time, expected in EXPECTED.items():
        found = send(producer, time)
        print(time, found)
        assert found == expected, "changed"


failed = True
try:
    main()
    failed = False
except Exception:
    traceback.print_exc()
finally:
    # The client's threads would keep the process alive.
    sys.stdout.flush()
    os._exit(failed)
PROGRAM
