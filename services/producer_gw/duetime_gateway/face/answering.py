"""Reserves capacity for answers before they are made: a call asks the store for no more than the gateway can hold."""

from duetime_core.clock import SystemClock
from duetime_core.limits.room import Reservation, Room
from duetime_core.limits.traffic import COUNTED_BYTES_MIN
from duetime_format import limits

from duetime_gateway.queries import Selection

# Longest wait of a call for other answers to be sent.
ROOM_WAIT_MS_MAX = 5_000
# Measures network time, so it is never a test's clock.
_CLOCK = SystemClock()


async def room_for(answers: Room, peer: str, selection: Selection, remaining_ms: float | None) -> Reservation:
    """Reserves capacity for an answer with this selection, and lowers `max_bytes` if there is less. `first_bytes_max`
    has the capacity for a first message, unless it is enough for any.

    Raises:
        Overloaded: almost none was available in time.
    """
    wanted = selection.max_bytes or limits.PULL_BYTES_DEFAULT
    if not 0 < wanted <= limits.PULL_BYTES_MAX:
        # The selection is rejected later.
        return Reservation(answers, peer, 0)
    wanted = min(wanted, limits.PULL_ANSWER_BYTES_MAX)
    size = min(wanted, answers.shares.room(peer))
    if size >= min(wanted, COUNTED_BYTES_MIN):
        room = Reservation(answers, peer, size)
    else:
        room = await room_in_turn(answers, peer, min(wanted, COUNTED_BYTES_MIN), remaining_ms)
    if room.size < wanted:
        selection.max_bytes = room.size
    first = room.size + answers.shares.room(peer)
    if first < limits.BATCH_BYTES_MAX:
        selection.first_bytes_max = first
    if selection.wait_ms > 0:
        room.await_answer()
    return room


async def room_in_turn(answers: Room, peer: str, size: int, remaining_ms: float | None) -> Reservation:
    """Reserves capacity for an answer of up to `size` bytes, waiting if necessary.

    Raises:
        Overloaded: none was available in time.
    """
    timeout_ms = ROOM_WAIT_MS_MAX if remaining_ms is None else min(remaining_ms, ROOM_WAIT_MS_MAX)
    return await answers.wait(peer, size, _CLOCK, timeout_ms)
