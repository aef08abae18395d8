#!/bin/sh
# Mosquitto 2.0.11 (Debian 12) publishes all wills when it is stopped, before their time; a killed one loses them.
#
# MQTT 5 has a Will Delay Interval, so that a client that reconnects within it is not reported as gone. A client with
# a will after an hour and a session of two hours is connected while the broker is stopped with SIGTERM and started
# again, with persistence. Its will is published at the stop, although it reconnects within seconds. The will of a
# client that was lost before, after a minute, is published with it. After SIGKILL neither is, in 75 s. Without a
# restart the delay is kept.
#
# Consequence: a clean restart of the broker reports each device as gone; after a crash those that are gone are not.
# Remedy: no decision by a will alone: a time of the last sign of life beside it.
#
# Output: mosquitto version 2.0.11, paho-mqtt 2.1.0
#         no restart: the lost client's will after its delay
#         SIGTERM: wills of connected (reconnected), lost
#         SIGKILL: no wills
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 .
apt-get download -qq mosquitto libwebsockets17 libcjson1 libdlt2 libev4 libuv1 libwrap0 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check paho-mqtt==2.1.0
libraries=$(find . -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
cat >wills.py <<'PROGRAM'
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

with socket.create_server(("127.0.0.1", 0)) as taken:
    PORT = taken.getsockname()[1]


def broker(name: str) -> subprocess.Popen:
    folder = Path(name).absolute()
    folder.mkdir(exist_ok=True)
    lines = [f"listener {PORT} 127.0.0.1", "allow_anonymous true", "user root", "persistence true"]
    Path("mosquitto.conf").write_text("\n".join([*lines, f"persistence_location {folder}/\n"]))
    environment = {**os.environ, "LD_LIBRARY_PATH": sys.argv[1]}
    started = subprocess.Popen(
        ["usr/sbin/mosquitto", "-c", "mosquitto.conf"], env=environment, stderr=subprocess.DEVNULL
    )
    while started.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return started
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no broker")


def client(name: str, will_s: int = 0) -> Client:
    """A connected client that reconnects by itself, with a session of two hours."""
    found = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
    found.messages, connected, subscribed = queue.Queue(), threading.Event(), threading.Event()
    found.on_message = lambda *values: found.messages.put((values[-1].payload.decode(), time.monotonic()))
    found.on_connect = lambda *_: connected.set()
    found.on_subscribe = lambda *_: subscribed.set()
    if will_s:
        delayed = Properties(PacketTypes.WILLMESSAGE)
        delayed.WillDelayInterval = will_s
        found.will_set("will", name, qos=1, properties=delayed)
    kept = Properties(PacketTypes.CONNECT)
    kept.SessionExpiryInterval = 7200
    found.connect("127.0.0.1", PORT, clean_start=False, properties=kept)
    found.loop_start()
    assert connected.wait(60)
    if not will_s:
        found.subscribe("will", 1)
        assert subscribed.wait(60)
    return found


def wills(watcher: Client, patience_s: int) -> dict[str, float]:
    found = {}
    try:
        while True:
            name, at = watcher.messages.get(timeout=patience_s)
            found[name] = at
    except queue.Empty:
        return found


def outcome(restart: signal.Signals | None, will_s: int, patience_s: int) -> tuple[dict[str, float], bool]:
    """Seconds from the loss of a client to each will, and whether the other client is connected at the end."""
    name = restart.name if restart else "none"
    server = broker(name)
    try:
        watcher, connected, lost = client("watcher"), client("connected", 3600), client("lost", will_s)
        lost.loop_stop()
        lost.socket().close()
        start = time.monotonic()
        if restart:
            server.send_signal(restart)
            server.wait()
            server = broker(name)
        found = {name: at - start for name, at in wills(watcher, patience_s).items()}
        reconnected = connected.is_connected()
        for one in (watcher, connected):
            one.loop_stop()
        return found, reconnected
    finally:
        server.kill()
        server.wait()


text = subprocess.run(
    ["usr/sbin/mosquitto", "-h"], env={**os.environ, "LD_LIBRARY_PATH": sys.argv[1]}, capture_output=True, text=True
).stdout
print(f"{text.splitlines()[0]}, paho-mqtt {version('paho-mqtt')}")
kept, _ = outcome(None, 6, 15)
assert list(kept) == ["lost"] and kept["lost"] > 5, f"changed: {kept}"
print("no restart: the lost client's will after its delay", flush=True)
stopped, reconnected = outcome(signal.SIGTERM, 60, 15)
assert set(stopped) == {"connected", "lost"} and reconnected, f"changed: {stopped}"
print("SIGTERM: wills of", ", ".join(sorted(stopped)).replace("connected", "connected (reconnected)"), flush=True)
killed, reconnected = outcome(signal.SIGKILL, 60, 75)
assert not killed and reconnected, f"changed: {killed}"
print("SIGKILL: no wills")
PROGRAM
venv/bin/python wills.py "$libraries"
