"""The administrator's client: topics, groups and lanes, and how many messages are pending."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import datetime
from typing import Literal

from duetime_format import rates
from duetime_format.limits import LITE_PAGE_COUNT_MAX, PER_KEY_MAX, QUEUE_COUNT_MAX

from duetime.client.administering import described, retries
from duetime.client.administering.described import (
    DeletedTopic,
    Group,
    GroupDescription,
    GroupPause,
    Lanes,
    LiteTopic,
    Topic,
    TopicDescription,
)
from duetime.client.administering.retries import RetriesProgress, WaitingRetry
from duetime.client.connection import GatewayConnection, RepeatingClient
from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument
from duetime.client.finding import pending
from duetime.client.finding.pending import Backlog
from duetime.client.groups import new_group
from duetime.client.lengths import Length, seconds
from duetime.client.message import at_ms, delay_ms
from duetime.client.retry_policy import Backoff, handler_policy
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.v1 import consumer_pb2, gateway_pb2

PAGE_COUNT = 256


class AsyncAdmin(RepeatingClient):
    """Topics, groups, lanes and the backlog. For one event loop; `Admin` is for plain code.

    Calls are repeated until they are answered or the timeout has passed.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: the longest time of one call.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: Length = "10s",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = GatewayConnection(server, token, tls)
        self._timeout = seconds(timeout, "timeout")

    async def topics(self) -> list[Topic]:
        """Lists the topics, by name. Pauses of shards that do not answer are missing."""
        return described.topics_of(await self._call("ListTopics", gateway_pb2.ListTopicsRequest()))

    async def topic(self, name: str) -> TopicDescription:
        """Describes a topic and its queues. Raises: NotFound."""
        answer = await self._call("DescribeTopic", gateway_pb2.DescribeTopicRequest(name=name))
        return described.topic_description_of(answer)

    async def lite_topics(self, topic: str, group: str = "") -> AsyncGenerator[LiteTopic, None]:
        """Lists the lite topics of a topic of the type `lite`, by name, with the number of their stored messages.
        Iteration fetches page by page.

        `group` adds the number of messages that it has not received yet.

        Raises:
            NotFound: the topic does not exist.
        """
        request = gateway_pb2.ListLiteTopicsRequest(topic=topic, group=group, max_count=LITE_PAGE_COUNT_MAX)
        while True:
            found = described.lite_topics_of(await self._call("ListLiteTopics", request), group)
            for one in found:
                yield one
            if len(found) < LITE_PAGE_COUNT_MAX:
                return
            request.after = found[-1].name

    async def create_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        max_delay: Length | None = None,
        type: str = "any",  # noqa: A002
    ) -> Topic:
        """Creates a topic and returns it. An existing topic with the same settings is left unchanged.

        Arguments:
            queues: the number of queues, 1 to 1,024; None: the server's setting.
            max_delay: the longest delay of its messages: "30d" or a timedelta; None: ten years.
            type: the type of its messages: "normal", "fifo", "delay", "transaction", "lite" or "priority"; "any".

        Raises:
            AlreadyExists: it exists with other settings.
            InvalidArgument: the name or an argument breaks its rule.
        """
        max_delay_ms = 0 if max_delay is None else delay_ms(max_delay, "max_delay")
        queue_count = 0 if queues is None else whole("queues", queues, QUEUE_COUNT_MAX)
        request = gateway_pb2.CreateTopicRequest(
            name=name, queue_count=queue_count, max_delay_ms=max_delay_ms, message_type=described.topic_type(type)
        )
        return described.topic_of(await self._call("CreateTopic", request))

    async def delete_topic(self, name: str, *, force: bool = False, dry_run: bool = False) -> DeletedTopic:
        """Deletes a topic and returns the contents that were deleted with it.

        Arguments:
            force: delete a topic with undelivered messages: pending ones are cancelled, transactions rolled back, dead
                letters discarded.
            dry_run: change nothing, and return the contents that would be deleted.

        Raises:
            Conflict: the topic is not empty, without `force`.
            NotFound: the topic does not exist, or an attempt whose answer was lost has deleted it.
            Unavailable: a shard does not answer; the deletion may be in progress. The same call continues it.
        """
        request = gateway_pb2.DeleteTopicRequest(name=name, force=force, dry_run=dry_run)
        return described.deleted_topic_of(await self._call("DeleteTopic", request))

    async def pause_topic(self, name: str, *, until: datetime | Length | None = None) -> GroupPause:
        """Pauses the deliveries of a topic to all groups, until the pause ends. Sends are not affected.

        Otherwise as `pause_group`, with `resume_topic`.
        """
        request = gateway_pb2.PauseTopicRequest(name=name)
        _set_end(request, until)
        return described.pauses_of((await self._call("PauseTopic", request)).pauses)[0]

    async def resume_topic(self, name: str) -> None:
        """Ends the pause of a topic; pauses of single groups remain. Raises: as `pause_topic`."""
        await self._call("ResumeTopic", gateway_pb2.ResumeTopicRequest(name=name))

    async def groups(self) -> list[Group]:
        """Lists the consumer groups, by name."""
        answer = await self._call("ListGroups", consumer_pb2.ListGroupsRequest())
        return [described.group_of(group) for group in answer.groups]

    async def group(self, name: str) -> GroupDescription:
        """Describes a group: its offset in each queue, its members and their rates. Raises: NotFound."""
        answer = await self._call("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
        return described.group_description_of(answer)

    async def create_group(
        self,
        name: str,
        *,
        start: Literal["earliest", "latest"] | datetime = "earliest",
        ordered: bool = False,
        backoff: Backoff | None = None,
        max_attempts: int | None = None,
    ) -> Group:
        """Creates a consumer group and returns it. An existing group with the same settings is left unchanged.

        The arguments are those of `Consumer` and its `handler`. The policy applies to messages and handlers without
        their own.

        Raises:
            AlreadyExists: it exists with other settings.
            InvalidArgument: the name or an argument breaks its rule.
        """
        group = new_group(name, ordered, start)
        policy = handler_policy(backoff, max_attempts)
        if policy is not None:
            group.retry.CopyFrom(policy)
        return described.group_of(await self._call("CreateGroup", consumer_pb2.CreateGroupRequest(group=group)))

    async def limit_group(
        self, name: str, rate: str | None = None, *, per_key: int | None = None, topic: str = ""
    ) -> Group:
        """Limits a group; all its receivers share the limit. Replaces the one for the same topic. Returns the group.

        Redeliveries count too. Other messages wait. In force at once.

        Arguments:
            rate: "50/s", "3000/m", "100/h" or "5000/d", and `,burst=N` for N at once after a rest (default: those of
                one second); None: no rate.
            per_key: messages with one `sharding_key` received at a time, 1 to 10,000; None: any number.
                Without `rate` and `per_key`, the limit is removed.
            topic: the limit is for this topic; empty: for each topic without its own limit.

        Raises:
            NotFound: the group or the topic does not exist.
            InvalidArgument: the rate is of another form, or out of range.
            Conflict: `per_key` for an ordered group.
            Overloaded: the group has 100 limits.
        """
        request = consumer_pb2.LimitGroupRequest(name=name)
        request.limit.topic = topic
        if per_key is not None:
            request.limit.per_key = whole("per_key", per_key, PER_KEY_MAX)
        if rate is not None:
            try:
                rates.fill(request.limit.rate, rate)
            except ValueError as error:
                raise InvalidArgument.of("rate", str(error)) from error
        return described.group_of(await self._call("LimitGroup", request))

    async def pause_group(
        self, name: str, *, topic: str = "", until: datetime | Length | None = None
    ) -> list[GroupPause]:
        """Pauses a group: its receivers get no message, of a topic or of any, until the pause ends. Returns its pauses.

        Leases stay valid: received messages can be acknowledged. A pause survives restarts.

        Arguments:
            topic: empty: all topics.
            until: a time, local if it has no time zone, or a length from now such as "30m", by the servers' clocks;
                None: until `resume_group`.

        Raises:
            NotFound: the group does not exist.
            InvalidArgument: the end is past, or more than ten years ahead.
            Unavailable: a shard does not answer; the others may have paused. The same call continues.
        """
        request = consumer_pb2.PauseGroupRequest(name=name, topic=topic)
        _set_end(request, until)
        return described.pauses_of((await self._call("PauseGroup", request)).pauses)

    async def resume_group(self, name: str, *, topic: str = "") -> list[GroupPause]:
        """Ends the pauses of a group, or that of a topic. Returns those that are left. Raises: as `pause_group`."""
        request = consumer_pb2.ResumeGroupRequest(name=name, topic=topic)
        return described.pauses_of((await self._call("ResumeGroup", request)).pauses)

    async def retries(
        self, group: str, *, topic: str = "", error: str = "", ids: Collection[str] = (), bodies: bool = True
    ) -> AsyncGenerator[WaitingRetry, None]:
        """Lists failed messages of a group that wait for their next attempt, earliest delivery first. Iteration fetches
        page by page. Failed messages of an ordered group wait in their queues and are not listed.

        Arguments:
            topic: the topic of the first delivery; empty: all.
            error: a part of `TYPE: message` of the last attempt's error; case is ignored.
            ids: the ids to list; empty: all.
            bodies: False leaves the bodies empty.

        Raises:
            NotFound: the group does not exist.
            DueTimeError: a shard does not answer, so that retries might be missing.
        """
        wanted = retries.filter_of(group, topic, error, ids)
        request = consumer_pb2.ListRetriesRequest(filter=wanted, max_count=PAGE_COUNT, omit_bodies=not bodies)
        while True:
            answer = await self._call("ListRetries", request)
            for one in answer.retries:
                yield WaitingRetry(one)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    def retry_now(
        self, group: str, *, topic: str = "", error: str = "", ids: Collection[str] = (), dry_run: bool = False
    ) -> AsyncGenerator[RetriesProgress, None]:
        """Delivers waiting retries of a group now: all, or those that match the arguments of `retries`. Yields the
        progress about once a second, and at the end.

        `dry_run` only counts them. Closing the iterator stops the work; another call continues it.

        Raises:
            NotFound: the group does not exist.
            Overloaded: the server already runs too many such calls.
            DueTimeError: a shard does not answer; the other shards are done.
        """
        return self._ended("RetryNow", retries.filter_of(group, topic, error, ids), dry_run)

    def discard_retries(
        self, group: str, *, topic: str = "", error: str = "", ids: Collection[str] = (), dry_run: bool = False
    ) -> AsyncGenerator[RetriesProgress, None]:
        """Deletes waiting retries of a group for good: they are never redelivered. Otherwise as `retry_now`."""
        return self._ended("DiscardRetries", retries.filter_of(group, topic, error, ids), dry_run)

    async def lanes(self) -> Lanes:
        """Lists the lanes of all shards, each with its pending messages, next due time and scheduler."""
        return described.lanes_of(await self._call("ListLanes", gateway_pb2.ListLanesRequest()))

    async def backlog(
        self,
        topic: str = "",
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        by_topic: bool = False,
        by_lane: bool = False,
    ) -> Backlog:
        """Counts pending messages by due time, as `Finder.backlog` does."""
        request = pending.counted(topic, after, before, by_topic=by_topic, by_lane=by_lane)
        return pending.from_proto(await self._call("Backlog", request))

    async def close(self) -> None:
        """Disconnects."""
        await self._connection.close()

    def __repr__(self) -> str:
        return self._connection.described("AsyncAdmin")

    async def _ended(
        self, method: str, wanted: consumer_pb2.RetryFilter, dry_run: bool
    ) -> AsyncGenerator[RetriesProgress, None]:
        request = consumer_pb2.EndRetriesRequest(filter=wanted, dry_run=dry_run)
        async with aclosing(self._connection.stream(method, request)) as answers:
            async for one in answers:
                yield retries.progress_of(one)


def _set_end(
    request: consumer_pb2.PauseGroupRequest | gateway_pb2.PauseTopicRequest, until: datetime | Length | None
) -> None:
    if isinstance(until, datetime):
        request.until_ms = at_ms(until)
    elif until is not None:
        request.for_ms = delay_ms(until, "until")
