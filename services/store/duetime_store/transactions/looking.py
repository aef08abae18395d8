"""GetTransaction and ListTransactions: open and given-up transactions. Read only.

Open ones are rows of the table, in order of half offsets; given-up ones are messages of TRANS_CHECK_MAX_TIME_TOPIC
whose half messages are still marked so. A page token is the place of the next one: `o:17`, or `g:3`.
"""

import re
from collections.abc import MutableSequence
from dataclasses import dataclass

import numpy as np
from duetime.v1 import store_pb2, transactions_pb2
from duetime_core.errors import Ambiguous, InvalidArgument, NotFound, Violation
from duetime_format import halves, record
from duetime_format.errors import DamagedBytes, within
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP
from duetime_format.limits import TRANSACTIONS_PAGE_DEFAULT, TRANSACTIONS_PAGE_MAX
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC
from duetime_format.properties import value_of
from duetime_format.record import Record
from duetime_format.timers import java_long

from duetime_store.finding.destinations import destination_of
from duetime_store.finding.finder import MessageFinder
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.halfqueue import HalfOutcome, HalfQueue
from duetime_store.queues.queues import Queues
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.transactions.ending import OPEN, STATES, not_found
from duetime_store.transactions.reading import read_half, topic_of
from duetime_store.transactions.results import SendResultMaker
from duetime_store.transactions.table import OpenTransactions

# Rows read in one piece of a step, and the maximum for one page, which then ends with its results and a token.
_PIECE = 64
LOOK_MAX = 16_384
# Maximum records of one message to read for its half message.
_RECORDS_MAX = 256
_TOKEN = re.compile(r"([og]):([0-9]{1,18})")
_REAL_QID = record.REAL_QID.encode()
_UNSPECIFIED = transactions_pb2.TRANSACTION_STATE_UNSPECIFIED
_GIVEN_UP = transactions_pb2.TRANSACTION_STATE_GIVEN_UP


@dataclass(frozen=True, slots=True)
class _TransactionPage:
    """The request for a page, and its results so far."""

    request: transactions_pb2.ListTransactionsRequest
    count: int
    halves: MutableSequence[store_pb2.HalfTransaction]

    @property
    def is_full(self) -> bool:
        return len(self.halves) == self.count


class TransactionReader:
    """Serves both calls."""

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        halves: HalfQueue,
        table: OpenTransactions,
        results: SendResultMaker,
        finder: MessageFinder,
        turns: ScanTurns,
        *,
        shard: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._halves = halves
        self._table = table
        self._results = results
        self._finder = finder
        self._turns = turns
        self._shard = shard

    # --- one --------------------------------------------------------------------------------------------------------

    async def get(self, request: store_pb2.GetHalfRequest) -> store_pb2.GetHalfResponse:
        """Returns one transaction.

        Raises:
            NotFound: there is no such transaction, or it has left the log.
            InvalidArgument: the request names none.
            Ambiguous: the request has a message id without a topic, and several topics have a transaction with it.
            Unavailable, Unsupported: the request has a message id, and too little is indexed, or nothing.
        """
        if request.message_id:
            offset = await self._offset_of(request.message_id, request.topic)
        elif request.HasField("half"):
            offset = request.half.offset
        else:
            raise InvalidArgument([Violation("half", "neither it nor message_id is set")])
        position, size, end = self._halves.published(offset)
        found = read_half(self._log, offset, position, size)
        if not size or (found is None and end is None):
            raise not_found(offset)
        if found is not None and request.half.position > position:
            raise not_found(offset, f" at {request.half.position}")
        response = store_pb2.GetHalfResponse(half=self._described(offset, position, found, end))
        if found is not None:
            response.record = self._log.read_record(position, size)
        if end is not None and end.code == COMMITTED:
            _, sent = self._results.at(end.position, response.half.transaction.message_id)
            response.sent.CopyFrom(sent)
        return response

    async def _offset_of(self, message_id: str, topic: str) -> int:
        """The offset of the newest half message with this id for the topic; empty: the only topic that has it."""
        try:
            seen, _ = await self._finder.records_of(message_id, HALF_TOPIC, _RECORDS_MAX)
        except NotFound:
            seen = []
        found = [one for one in seen if one.record.topic == HALF_TOPIC and topic in ("", one.real_topic)]
        if not found:
            raise NotFound(f"no transaction of message {message_id} is known", reason="TRANSACTION_NOT_FOUND")
        kept = [one for one in found if destination_of(self._queues.deletions, one)]
        topics = {one.real_topic for one in kept}
        if not topic and len(topics) > 1:
            raise Ambiguous(message_id, sorted(topics))
        return (kept or found)[-1].record.queue_offset

    def _described(
        self, offset: int, position: int, found: Record | None, end: HalfOutcome | None
    ) -> store_pb2.HalfTransaction:
        """`found`: the half record; None: it has left the log."""
        half = store_pb2.HalfTransaction(half=store_pb2.Half(offset=offset, position=position))
        one = half.transaction
        one.shard = self._shard
        one.state = OPEN if end is None else STATES.get(end.code, _UNSPECIFIED)
        if end is not None and end.code != ENDED:
            ended = self._read(end.position)
            if ended is not None:
                one.ended_at_ms = ended.stored_at_ms
                if end.code == GIVEN_UP:
                    one.checks = halves.checks_of(ended.properties)
        if found is not None:
            one.message_id, one.group = halves.message_id_of(found.properties), halves.group_of(found.properties)
            one.topic, one.queue = topic_of(found), java_long(value_of(found.properties, _REAL_QID)) or 0
            one.prepared_at_ms = found.stored_at_ms
        row = self._table.find(np.array([offset], np.int64))
        if len(row.offsets) and end is None:
            one.checks, one.next_check_at_ms = int(row.checks[0]), int(row.next_check_at_ms[0])
        return half

    def _read(self, position: int) -> Record | None:
        """The record that a mark names; None: it has left the log."""
        if not self._log.is_published(position):
            return None
        seen = self._finder.read(position, expected=False)
        return None if seen is None else seen.record

    # --- pages ------------------------------------------------------------------------------------------------------

    async def page(self, request: transactions_pb2.ListTransactionsRequest) -> store_pb2.ListHalvesResponse:
        """Raises:
        InvalidArgument: an invalid state, size or token."""
        kind, place, count = _asked(request)
        response = store_pb2.ListHalvesResponse()
        page = _TransactionPage(request, count, response.halves)
        with self._turns.walk() as walk:
            walk.start()
            if kind == "o":
                following = await self._open(page, place, walk)
                if following is not None:
                    response.next_page_token = f"o:{following}"
                if following is not None or request.state == OPEN:
                    return response
                place = 0
            following = await self._given_up(page, place, walk)
            if following is not None:
                response.next_page_token = f"g:{following}"
        return response

    async def _open(self, page: _TransactionPage, place: int, walk: YieldingScan) -> int | None:
        """Fills in open ones from `place` on. Returns the next place; None: there are no more."""
        request = page.request
        for _ in range(LOOK_MAX // _PIECE):
            rows = self._table.page(place - 1, request.group, _PIECE)
            if not len(rows.offsets):
                return None
            units = self._halves.units(rows.offsets)
            for offset, (position, size, _) in zip(rows.offsets.tolist(), units.tolist(), strict=True):
                if page.is_full:
                    return place
                place = offset + 1
                found = read_half(self._log, offset, position, size)
                if found is None:
                    continue
                if request.prepared_before_ms and found.stored_at_ms >= request.prepared_before_ms:
                    return None
                if not request.topic or topic_of(found) == request.topic:
                    page.halves.append(self._described(offset, position, found, None))
            await walk.turn_if_over()
        return place

    async def _given_up(self, page: _TransactionPage, place: int, walk: YieldingScan) -> int | None:
        """As `_open`; `place` is one of TRANS_CHECK_MAX_TIME_TOPIC."""
        queue = self._queues.known(GIVEN_UP_TOPIC.encode(), 0)
        if queue is None:
            return None
        for _ in range(LOOK_MAX // _PIECE):
            place = max(place, queue.min_offset)
            units = queue.read(place, _PIECE)
            if not len(units):
                return None
            for position, size, _ in units.tolist():
                if page.is_full:
                    return place
                place += 1
                half = self._half_given_up(position, size)
                if half is not None and _is_wanted(half.transaction, page.request):
                    page.halves.append(half)
            await walk.turn_if_over()
        return place

    def _half_given_up(self, position: int, size: int) -> store_pb2.HalfTransaction | None:
        """None: it has been ended since, or has left the log."""
        try:
            copy = record.decode(self._log.read_record(position, size))
        except DamagedBytes:
            return None
        offset = halves.half_of(copy.properties)
        if offset is None:
            return None
        half_position, half_size, end = self._halves.published(offset)
        if end is None or end.code != GIVEN_UP:
            return None
        found = read_half(self._log, offset, half_position, half_size)
        half = self._described(offset, half_position, found or copy, end)
        half.transaction.checks = halves.checks_of(copy.properties)
        half.transaction.ended_at_ms = copy.stored_at_ms
        if found is None:
            half.transaction.prepared_at_ms = 0
        return half


def _is_wanted(one: transactions_pb2.Transaction, request: transactions_pb2.ListTransactionsRequest) -> bool:
    is_old = not request.prepared_before_ms or one.prepared_at_ms < request.prepared_before_ms
    return is_old and request.group in ("", one.group) and request.topic in ("", one.topic)


def _asked(request: transactions_pb2.ListTransactionsRequest) -> tuple[str, int, int]:
    """The start and the size of a page."""
    violations = []
    if request.state not in (_UNSPECIFIED, OPEN, _GIVEN_UP):
        violations.append(Violation("state", f"{request.state} is not OPEN, GIVEN_UP or UNSPECIFIED"))
    violations += within("page_size", request.page_size, 0, TRANSACTIONS_PAGE_MAX)
    token = _TOKEN.fullmatch(request.page_token or ("g:0" if request.state == _GIVEN_UP else "o:0"))
    if token is None or (token[1] == "g" and request.state == OPEN) or (token[1] == "o" and request.state == _GIVEN_UP):
        violations.append(Violation("page_token", "was not returned by this call"))
    if violations or token is None:
        raise InvalidArgument(violations)
    return token[1], int(token[2]), request.page_size or TRANSACTIONS_PAGE_DEFAULT
