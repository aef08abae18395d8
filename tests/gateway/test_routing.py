"""Queue choice, placement of queues, and ids."""

from collections import Counter

from duetime_format import record
from duetime_gateway.face.callers import host_of_peer
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.shards.route import Route, place, shard_places


def test_queues_of_one_shard_take_turns() -> None:
    route = Route("orders", [0, 0, 0])
    assert [route.choose("", f"id{n}") for n in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_id_chooses_the_shard_and_its_queues_take_turns() -> None:
    route = Route("orders", [0, 1, 0, 1])
    chosen = [[route.choose("", f"id{n}") for n in range(100)] for _ in range(2)]
    assert [queue % 2 for queue in chosen[0]] == [queue % 2 for queue in chosen[1]]
    counts = Counter(chosen[0] + chosen[1])
    assert abs(counts[0] - counts[2]) <= 1
    assert abs(counts[1] - counts[3]) <= 1
    assert min(counts.values()) > 25


def test_sharding_key_chooses_the_queue() -> None:
    route, other = (Route("orders", [0, 1, 2, 3, 0]) for _ in range(2))
    assert [route.choose(f"k{n}", "a") for n in range(50)] == [other.choose(f"k{n}", "b") for n in range(50)]


def test_queues_of_a_new_topic_are_spread_evenly() -> None:
    for count in range(1, 20):
        counts = Counter(place("orders", count, [3, 5, 9]))
        assert max(counts.values()) - min(counts.get(shard, 0) for shard in (3, 5, 9)) <= 1
    firsts = Counter(place(f"topic{n}", 1, [3, 5, 9])[0] for n in range(300))
    assert min(firsts.values()) > 60


def test_topics_of_each_shard_are_read_shard_by_shard() -> None:
    assert shard_places("DT_QUARANTINE", [2, 0], 3) == {0: (0, 0), 2: (2, 0)}
    assert shard_places("SCHEDULE_TOPIC_XXXX", [0, 1], 2) == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
    assert shard_places("%RETRY%g", [0], 2) is None


def test_ids_never_repeat_though_the_clock_steps_back() -> None:
    now_ms = [1_700_000_000_000]
    ids = MessageIds("192.168.1.2", 0x12345, b"\x01\x02\x03\x04", lambda: now_ms[0])
    made = []
    for step in (0, 0, 1, -5_000, 70):
        now_ms[0] += step
        ids.renew()
        made += [ids.make() for _ in range(70_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    assert {one[:20] for one in made} == {"C0A80102234501020304"}
    assert {len(one) for one in made} == {32}


def test_ids_need_no_numeric_address() -> None:
    assert MessageIds("localhost", 1, b"abcd", lambda: 1).make().startswith("00000000")
    assert MessageIds("::1", 1, b"abcd", lambda: 1).make().startswith("00000001")


def test_peer_is_the_born_host() -> None:
    assert record.host_text(host_of_peer("ipv4:1.2.3.4:5")) == "1.2.3.4:5"
    assert record.host_text(host_of_peer("ipv6:%5B::1%5D:80")) == "[::1]:80"
    assert record.host_text(host_of_peer("ipv6:[fe80::1%25eth0]:80")) == "[fe80::1]:80"
    assert record.host_text(host_of_peer("unix:/tmp/x")) == "127.0.0.1:0"
