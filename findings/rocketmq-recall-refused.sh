#!/bin/sh
# RocketMQ 5.5.1 refuses to recall a delayed message up to a second before its time.
#
# The answer to a send has a handle for the recall. It holds the due time cut off to whole seconds, and the broker
# refuses a recall after that: code 604, "recall failed, timestamp invalid". Ten messages ask for .9 of a second
# (TIMER_DELIVER_MS), and their recalls are sent half a second before it. All are refused, and delivered after that.
# The same recalls 1.5 s before the time are accepted, and none of those messages is delivered. In 60 other tries, up
# to 20 ms before the time, no accepted message was delivered either. The client is the protocol in Python, with the
# default timers; the modules auth, client, filter and srvutil are 5.5.0's, the last ones that Maven Central serves.
#
# Consequence: "too late" does not mean that the message was delivered, nor that its time has come.
# Remedy: due times in whole seconds.
#
# Output: rocketmq-broker-5.5.1
#         recalled 1.5 s before .9 of a second: 10 of 10 accepted, 0 delivered
#         recalled 0.5 s before .9 of a second: 0 of 10 accepted, 10 delivered, 0.60 to 0.70 s after the refusal
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
older=
for module in auth client filter srvutil; do
  older="$older<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-$module</artifactId>
    <version>5.5.0</version></dependency>"
done
cat >pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencyManagement><dependencies>$older</dependencies></dependencyManagement>
  <dependencies><dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId>
    <version>5.5.1</version></dependency></dependencies>
</project>
POM
mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies -DincludeScope=runtime \
  -DoutputDirectory=jars
python3 - <<'PROGRAM'
import json
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

(JAR,) = Path("jars").glob("rocketmq-broker-*.jar")
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch")]
PORT, SEND, PULL, RECALL = 19_896, 10, 11, 370
REFUSED = 604


def ask(port, code, body=b"", **fields):
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 495}
    header |= {"serializeTypeCurrentRPC": "JSON", "extFields": {name: str(value) for name, value in fields.items()}}
    data = json.dumps(header).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body)
        stream = connection.makefile("rb")
        total, length = struct.unpack(">ii", stream.read(8))
        rest = stream.read(total - 4)
    return json.loads(rest[: length & 0xFFFFFF]), rest[length & 0xFFFFFF :]


def send(port, due_ms, number):
    """The handle for the recall of a message whose body is its number."""
    properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{number:032X}\x02"
    answer, _ = ask(
        port, SEND, b"%d" % number, producerGroup="p", topic="recalls", defaultTopic="TBW102", defaultTopicQueueNums=1,
        queueId=0, sysFlag=0, bornTimestamp=int(time.time() * 1000), flag=0, properties=properties, reconsumeTimes=0,
        unitMode="false",
    )
    assert answer["code"] == 0, answer
    return answer["extFields"].get("recallHandle")


def stored(port):
    """The store time in milliseconds of each message of the topic, by its number."""
    found = {}
    while True:
        answer, data = ask(
            port, PULL, consumerGroup="g", topic="recalls", queueId=0, queueOffset=len(found), maxMsgNums=32, sysFlag=4,
            commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
        )
        if answer["code"] != 0:
            return found
        while data:
            (size,), (at_ms,), (length,) = (
                struct.unpack_from(*one) for one in ((">i", data), (">q", data, 56), (">i", data, 84))
            )
            found[int(data[88 : 88 + length])] = at_ms
            data = data[size:]


def recalls(port, first, before_ms):
    """The codes of ten recalls, and the times of their answers, by the numbers of the messages."""
    found = {}
    due = {number: (int(time.time()) + 8 + 2 * (number - first)) * 1000 + 900 for number in range(first, first + 10)}
    handles = {number: send(port, due_ms, number) for number, due_ms in due.items()}
    for number, due_ms in due.items():
        time.sleep(max(0, (due_ms - before_ms) / 1000 - time.time()))
        answer, _ = ask(port, RECALL, topic="recalls", recallHandle=handles[number], producerGroup="p")
        assert answer["code"] in (0, REFUSED), answer
        found[number] = answer["code"], time.time() * 1000
    return found


def run(port):
    home = Path("home").absolute()
    home.mkdir()
    settings = {"listenPort": port, "haListenPort": port + 1, "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1"}
    settings |= {"storePathRootDir": home / "store", "storePathCommitLog": home / "store/commitlog"}
    settings |= {"mappedFileSizeCommitLog": 1 << 24, "diskMaxUsedSpaceRatio": 99, "recallMessageEnable": "true"}
    (home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx512m", *OPENED, f"-Duser.home={home}", "-cp", "jars/*", "org.apache.rocketmq.broker.BrokerStartup"]
    broker = subprocess.Popen(
        [*java, "-c", home / "broker.conf"], env={**os.environ, "ROCKETMQ_HOME": str(home)}, stdout=subprocess.DEVNULL
    )
    try:
        give_up = time.monotonic() + 300
        while True:
            try:
                send(port, int(time.time()) * 1000, 0)
                break
            except (OSError, AssertionError, struct.error):
                assert broker.poll() is None and time.monotonic() < give_up, "no broker"
                time.sleep(0.5)
        for first, before_ms in ((100, 1500), (200, 500)):
            answers = recalls(port, first, before_ms)
            # A last message that is due later: all earlier ones have been delivered before it.
            send(port, (int(time.time()) + 5) * 1000, first + 10)
            while first + 10 not in (at_ms := stored(port)):
                assert time.monotonic() < give_up, at_ms
                time.sleep(0.5)
            accepted = sum(code == 0 for code, _ in answers.values())
            waits = [(at_ms[number] - answered) / 1000 for number, (_, answered) in answers.items() if number in at_ms]
            after = f", {min(waits):.2f} to {max(waits):.2f} s after the refusal" if waits else ""
            print(
                f"recalled {before_ms / 1000} s before .9 of a second: {accepted} of 10 accepted, "
                f"{len(waits)} delivered{after}",
                flush=True,
            )
            expected = (10, 0) if before_ms > 1000 else (0, 10)
            assert (accepted, len(waits)) == expected and min(waits, default=1) > 0, "changed"
    finally:
        broker.kill()
        broker.wait()


print(JAR.stem)
run(PORT)
PROGRAM
