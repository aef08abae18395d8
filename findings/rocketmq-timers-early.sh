#!/bin/sh
# RocketMQ 5.5.1 with timers in RocksDB (`timerRocksDBEnable`) delivers delayed messages early.
#
# Ten messages ask for .9 of ten seconds (TIMER_DELIVER_MS). The time at which the broker stores each in its topic is
# before that. With its default, timers in a wheel of files, none is early. The client is the protocol in Python; the
# modules auth, client, filter and srvutil are 5.5.0's, the last ones that Maven Central serves.
#
# Consequence: "not before" holds with the default engine only.
#
# Output: rocketmq-broker-5.5.1 timerRocksDBEnable=false: 0 of 10 early
#         rocketmq-broker-5.5.1 timerRocksDBEnable=true: 9 of 10 early, up to 893 ms
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
PORT, SEND, PULL = 19_876, 10, 11


def ask(port, code, body=b"", **fields):
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 495}
    header |= {"serializeTypeCurrentRPC": "JSON", "extFields": {name: str(value) for name, value in fields.items()}}
    data = json.dumps(header).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body)
        stream = connection.makefile("rb")
        total, length = struct.unpack(">ii", stream.read(8))
        rest = stream.read(total - 4)
    return json.loads(rest[: length & 0xFFFFFF])["code"], rest[length & 0xFFFFFF :]


def send(port, due_ms, number):
    properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{number:032X}\x02"
    code, _ = ask(
        port, SEND, b"%d" % due_ms, producerGroup="p", topic="early", defaultTopic="TBW102", defaultTopicQueueNums=1,
        queueId=0, sysFlag=0, bornTimestamp=int(time.time() * 1000), flag=0, properties=properties, reconsumeTimes=0,
        unitMode="false",
    )
    assert code == 0, code


def stored(port):
    """Milliseconds from the due time, which is the body, to the store time of each message."""
    code, data = ask(
        port, PULL, consumerGroup="g", topic="early", queueId=0, queueOffset=0, maxMsgNums=32, sysFlag=4,
        commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
    )
    found = []
    while code == 0 and data:
        (size,), (at_ms,), (length,) = (struct.unpack_from(*one) for one in ((">i", data), (">q", data, 56), (">i", data, 84)))
        found.append(at_ms - int(data[88 : 88 + length]))
        data = data[size:]
    return found


def run(port, in_rocksdb):
    home = Path(f"home-{in_rocksdb}").absolute()
    home.mkdir()
    settings = {"listenPort": port, "haListenPort": port + 1, "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1"}
    settings |= {"storePathRootDir": home / "store", "storePathCommitLog": home / "store/commitlog"}
    settings |= {"mappedFileSizeCommitLog": 1 << 24, "diskMaxUsedSpaceRatio": 99, "timerRocksDBEnable": in_rocksdb}
    lines = [f"{name}={json.dumps(value) if isinstance(value, bool) else value}\n" for name, value in settings.items()]
    (home / "broker.conf").write_text("".join(lines))
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
        for number in range(1, 11):
            send(port, (int(time.time()) + 10 + number) * 1000 + 900, number)
        # The first one only asked whether the broker is up.
        while len(late := stored(port)[-10:]) < 10:
            assert time.monotonic() < give_up, late
            time.sleep(0.5)
    finally:
        broker.kill()
        broker.wait()
    early = [-one for one in late if one < 0]
    most = f", up to {max(early)} ms" if early else ""
    print(f"{JAR.stem} timerRocksDBEnable={str(in_rocksdb).lower()}: {len(early)} of {len(late)} early{most}", flush=True)
    return len(early)


assert run(PORT, False) == 0, "changed"
assert run(PORT + 10, True) >= 8, "changed"
PROGRAM
