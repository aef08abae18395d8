"""Pulls, topics, routes, lanes, and the calls that every process answers."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2, retry_pb2
from duetime_core.metadata import Database, LaneLeaseModel
from duetime_gateway.face.face import SERVICE_NAME
from duetime_gateway.settings import GatewaySettings
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, real_store, tapped_retry, tapped_store
from tests.tap import WAIT_S, Tap


async def test_pull_waits_for_an_arrival(gateway: Gateway) -> None:
    await gateway.send(message(queue=0))
    call = gateway.stub.Pull(gateway_pb2.PullRequest(topic="orders", offset=1, wait_ms=30_000), timeout=WAIT_S)
    await gateway.send(message(b"late", queue=0))
    assert [one.body for one in (await call).messages] == [b"late"]


async def test_pull_filters_by_tag(gateway: Gateway) -> None:
    await gateway.send(*[message(tags=tags, queue=0) for tags in ("paid", "open", "")])
    answer = await gateway.pull(tags="open || refunded")
    assert [one.tags for one in answer.messages] == ["open"]
    assert (answer.next_offset, answer.max_offset) == (3, 3)


async def test_pull_filters_by_sql(gateway: Gateway) -> None:
    await gateway.send(*[message(properties={"size": size}, tags="paid", queue=0) for size in ("4", "5", "6")])
    answer = await gateway.pull(tags="paid", sql="size >= 5 AND size <> 6")
    assert [one.properties["size"] for one in answer.messages] == ["5"]
    assert answer.next_offset == 3
    error = await error_of(gateway.pull(sql="size >= "))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("sql: line 1, column 9: the end where a property")
    error = await error_of(pull_queues(gateway, 0, sql="a" * 3_000, tags="b" * 2_049))
    assert error.details() == "tags: has 2049 characters, more than 2048; sql: has 3000 characters, more than 2048"


async def test_queue_that_was_never_written_to_is_empty(two_shards: Gateway) -> None:
    await two_shards.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=4))
    for queue in range(4):
        assert (await two_shards.pull(queue=queue)).status == gateway_pb2.PULL_STATUS_NO_NEW


async def test_pull_of_a_missing_queue_is_refused(gateway: Gateway) -> None:
    error = await error_of(gateway.pull("nothing"))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "topic nothing does not exist")
    await gateway.send(message())
    error = await error_of(gateway.pull(queue=4))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "queue 4 is not one of the 4 queues of topic orders"
    error = await error_of(gateway.pull(max_count=5_000))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "max_count: 5000 is not within 0 and 1024"


def pull_queues(gateway: Gateway, *queues: int, **options: Any) -> grpc.aio.UnaryUnaryCall[Any, Any]:
    positions = [gateway_pb2.QueuePosition(queue=queue) for queue in queues]
    request = gateway_pb2.PullQueuesRequest(topic="orders", queues=positions, **options)
    return gateway.stub.PullQueues(request, timeout=WAIT_S)


async def test_message_without_capacity_stays_in_the_store(tmp_path: Path) -> None:
    answered: list[object] = []
    async with (
        tapped_store(tmp_path) as tap,
        Gateway(tmp_path, {0: tap.port}, answer_bytes_max=32 * 2**20) as gateway,
    ):
        tap.after["Pull"] = lambda _, answer: answered.append(answer)
        await gateway.send(message(bytes(2**20), queue=0), message(b"small", queue=0))
        # Half a MiB of the connection's share is left beside these.
        tap.hold("PullQueues")
        held = [pull_queues(gateway, 0, max_bytes=size) for size in (2**22, 2**22, 2**22, 2**21 - 2**17)]
        await tap.until_waiting("PullQueues", 4)
        for options in ({"max_bytes": 2**22}, {"max_bytes": 1}, {"sql": "a IS NULL"}):
            error = await error_of(gateway.pull(**options))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "the next message has 10" in (error.details() or "")
        assert not answered
        assert [one.body for one in (await gateway.pull(offset=1)).messages] == [b"small"]
        tap.release("PullQueues")
        for one in held:
            await one
        assert [len(one.body) for one in (await gateway.pull()).messages] == [2**20, 5]


async def test_queues_of_one_shard_are_read_in_one_call(two_shards: Gateway) -> None:
    results = await two_shards.send(*[message(id=f"id{n}", queue=n % 4) for n in range(8)])
    for shard in (0, 1):
        queues = sorted({one.queue for one in results if one.shard == shard}, reverse=True)
        assert len(queues) == 2
        answer = await pull_queues(two_shards, *queues)
        assert [one.queue for one in answer.queues] == queues
        for one in answer.queues:
            assert [each.queue for each in one.pull.messages] == [one.queue] * 2
    assert two_shards.metric("duetime_gateway_pulls_total") == 2


async def test_queues_of_one_shard_are_waited_for_in_one_call(gateway: Gateway) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=3))
    call = pull_queues(gateway, 0, 1, 2, wait_ms=30_000)
    await gateway.send(message(b"late", queue=2))
    assert [(one.queue, one.pull.messages[0].body) for one in (await call).queues] == [(2, b"late")]


async def test_lanes_of_one_shard_are_read_in_one_call(two_shards: Gateway) -> None:
    await two_shards.send(*[message(id=f"id{n}", delay_level=2) for n in range(20)])
    positions = [gateway_pb2.QueuePosition(queue=18 + level) for level in range(18)]
    request = gateway_pb2.PullQueuesRequest(topic="SCHEDULE_TOPIC_XXXX", queues=positions)
    (pulled,) = (await two_shards.stub.PullQueues(request)).queues
    assert pulled.queue == 18 + 1


async def test_pull_of_queues_that_do_not_go_together_is_refused(two_shards: Gateway) -> None:
    await two_shards.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=4))
    for queues, status, text in (
        ((), grpc.StatusCode.INVALID_ARGUMENT, "queues: 0 queues; a request has 1 to 1024"),
        ((0, 2, 0), grpc.StatusCode.INVALID_ARGUMENT, "queues[2].queue: 0 is named twice"),
        ((0, -1), grpc.StatusCode.INVALID_ARGUMENT, "queues[1].queue: -1 is not within 0 and 1023"),
        (
            (0, 1),
            grpc.StatusCode.INVALID_ARGUMENT,
            "queues: are on the shards [0, 1]; a call reads those of one shard (GetRoute)",
        ),
        ((0, 9), grpc.StatusCode.NOT_FOUND, "queue 9 is not one of the 4 queues of topic orders"),
    ):
        error = await error_of(pull_queues(two_shards, *queues))
        assert (error.code(), error.details()) == (status, text)
    error = await error_of(pull_queues(two_shards, 0, max_count=5_000, wait_ms=-1))
    assert error.details() == "max_count: 5000 is not within 0 and 1024; wait_ms: -1 is not within 0 and 30000"


async def test_lane_can_be_read_as_a_topic(two_shards: Gateway) -> None:
    results = await two_shards.send(*[message(b"%d" % n, id=f"id{n}", delay_level=2) for n in range(20)])
    for shard in (0, 1):
        pulled = await two_shards.pull("SCHEDULE_TOPIC_XXXX", shard * 18 + 1, max_count=100)
        assert {one.id for one in pulled.messages} == {one.message_id for one in results if one.shard == shard}


async def test_topics_are_made_once(gateway: Gateway) -> None:
    stub = gateway.stub
    made = await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="b", queue_count=8))
    assert (made.name, made.queue_count) == ("b", 8)
    assert await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="b", queue_count=8)) == made
    error = await error_of(stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="b", queue_count=9)))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert error.details() == "topic b exists with 8 queues, not 9"
    await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="a"))
    listed = (await stub.ListTopics(gateway_pb2.ListTopicsRequest())).topics
    assert [(topic.name, topic.queue_count) for topic in listed] == [("a", 4), ("b", 8)]
    error = await error_of(stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="DT_x", queue_count=-1)))
    assert error.details() == (
        "name: 'DT_x' is a system topic; only DueTime itself writes to it; queue_count: -1 is not within 0 and 1024"
    )


async def test_topic_is_described_by_queue(two_shards: Gateway) -> None:
    results = await two_shards.send(*[message(id=f"id{n}") for n in range(40)])
    description = await two_shards.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="orders"))
    assert (description.topic.name, description.topic.queue_count) == ("orders", 4)
    for one in description.queues:
        sent = [result for result in results if result.queue == one.queue]
        assert {result.shard for result in sent} <= {one.shard}
        assert (one.min_offset, one.max_offset) == (0, len(sent))
    for call in (
        two_shards.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="nothing")),
        two_shards.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="nothing")),
    ):
        assert (await error_of(call)).code() is grpc.StatusCode.NOT_FOUND
    error = await error_of(two_shards.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="a b")))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_topic_made_by_one_gateway_is_known_to_another(tmp_path, gateway: Gateway) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=7))
    port = int(gateway.settings.store_addresses[0].rpartition(":")[2])
    async with Gateway(tmp_path, {0: port}) as other:
        (result,) = await other.send(message(queue=6))
        assert result.queue == 6


async def test_each_shard_has_a_quarantine(two_shards: Gateway) -> None:
    route = await two_shards.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="DT_QUARANTINE"))
    assert [(one.queue, one.shard) for one in route.queues] == [(0, 0), (1, 1)]
    description = await two_shards.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="DT_QUARANTINE"))
    assert [(one.queue, one.shard, one.max_offset) for one in description.queues] == [(0, 0, 0), (1, 1, 0)]


async def test_lanes_have_their_owners(two_shards: Gateway) -> None:
    database = Database(two_shards.settings.database_url)
    await database.start()
    lease = LaneLeaseModel(shard=1, level=3, owner="host-5", epoch=1, paused=True)
    await database.run(lambda session: session.add(lease))
    await database.stop()
    answer = await two_shards.stub.ListLanes(gateway_pb2.ListLanesRequest())
    lanes = (*range(1, 19), 1_000)
    assert [(lane.shard, lane.level) for lane in answer.lanes] == [(s, n) for s in (0, 1) for n in lanes]
    owned = {(lane.shard, lane.level): (lane.owner, lane.paused) for lane in answer.lanes if lane.owner}
    assert owned == {(1, 3): ("host-5", True)}
    assert not answer.unreachable_shards


async def test_shards_that_do_not_answer_are_named(tmp_path) -> None:
    async with Tap("duetime.v1.Store") as gone:
        await gone.stop()
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port, 5: gone.port}) as gateway:
        answer = await gateway.stub.ListLanes(gateway_pb2.ListLanesRequest())
    assert {lane.shard for lane in answer.lanes} == {0}
    assert list(answer.unreachable_shards) == [5]


async def test_send_back_without_a_retry_service_is_not_supported(gateway: Gateway) -> None:
    error = await error_of(gateway.stub.SendBack(retry_pb2.SendBackRequest(group="g", topic="orders")))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "retry_address" in (error.details() or "")


async def test_send_back_passes_as_bytes(tmp_path: Path) -> None:
    # A field that this version of the contract does not have.
    unknown = b"\xf8\x7f\x01"
    async with (
        real_store(tmp_path) as store,
        tapped_retry(tmp_path, {0: store.port}) as retry,
        Gateway(tmp_path, {0: store.port}, retry_address=retry.address) as gateway,
    ):
        (sent,) = await gateway.send(message(queue=0))
        asked = retry_pb2.SendBackRequest(group="billing", topic="orders", token="t").SerializeToString() + unknown
        more = retry_pb2.SendBackResponse.FromString(unknown)
        retry.after["SendBack"] = lambda _, answer: answer.MergeFrom(more)
        call = gateway.channel.unary_unary("/duetime.v1.Gateway/SendBack")
        answer = await call(asked)
        assert retry.requests["SendBack"][0].SerializeToString() == asked
        assert answer.endswith(unknown)
        assert retry_pb2.SendBackResponse.FromString(answer).message_id == sent.message_id
        await retry.stop()
        error = await error_of(call(b""))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert (error.details() or "").startswith(f"the retry service at {retry.address} does not answer")


async def test_calls_past_the_limit_are_refused(tmp_path, tap: TappedStore) -> None:
    async with Gateway(tmp_path, {0: tap.port}, calls_in_flight_max=1) as gateway:
        await gateway.send(message())
        tap.hold("PutStream")
        first = gateway.stub.Send(gateway_pb2.SendRequest(messages=[message()]))
        await tap.until_waiting("PutStream", 1)
        error = await error_of(gateway.send(message()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        tap.release()
        assert not (await first).results[0].HasField("fault")


async def test_health_and_reflection_answer(gateway: Gateway) -> None:
    health = health_pb2_grpc.HealthStub(gateway.channel)
    for name in ("", SERVICE_NAME):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME)
    (answer,) = [one async for one in reflection.ServerReflectionInfo(iter([question]))]
    assert answer.file_descriptor_response.file_descriptor_proto


async def test_every_call_of_the_contract_is_served(gateway: Gateway) -> None:
    service = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]
    for method in service.methods:
        make = gateway.channel.stream_stream if method.client_streaming else gateway.channel.unary_unary
        call = make(f"/{service.full_name}/{method.name}")
        answered = call(iter([b""])) if method.client_streaming else call(b"")
        assert "Method not found" not in (await answered.details() or ""), method.name


def test_results_need_no_more_fields_than_are_set() -> None:
    """A field that is added to the contract has to be added to the answer."""
    fields = {field.name for field in message_pb2.SendResult.DESCRIPTOR.fields}
    assert fields == {
        "message_id",
        "shard",
        "queue",
        "offset",
        "delay_level",
        "deliver_at_ms",
        "requested_level",
        "duplicate",
        "lane",
        "was_past",
        "replaced_id",
        "fault",
    }


async def test_restarted_gateway_finds_its_topics(tmp_path, gateway: Gateway) -> None:
    await gateway.send(message(b"kept", queue=1))
    await gateway.node.stop()
    port = int(gateway.settings.store_addresses[0].rpartition(":")[2])
    async with Gateway(tmp_path, {0: port}) as again:
        assert [one.body for one in (await again.pull(queue=1)).messages] == [b"kept"]


@pytest.mark.parametrize("address", ["nohost", ":5", "host:", "host:x"])
def test_retry_address_is_checked(address: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        GatewaySettings(stores="0=a:1", database_url="sqlite:////x", retry_address=address)
