"""Room for answers before they are made: a call asks the store for no more than the gateway can take."""

from duetime_core.clock import SystemClock
from duetime_core.room import Reservation, Room
from duetime_core.traffic import COUNTED_BYTES_MIN
from duetime_format import limits

from duetime_gateway.queries import Selection

# How long a call waits for others' answers to go.
ROOM_WAIT_MS_MAX = 5_000
# Measures the network's work, so it is never a test's clock.
_CLOCK = SystemClock()


async def room_for(answers: Room, peer: str, selection: Selection, remaining_ms: float | None) -> Reservation:
    """Room for an answer with this selection, whose `max_bytes` is lowered if there is less.

    Raises:
        Overloaded: there is next to none, and there was none in time.
    """
    wanted = selection.max_bytes or limits.PULL_BYTES_DEFAULT
    if not 0 < wanted <= limits.PULL_BYTES_MAX:
        # The selection is refused later on.
        return Reservation(answers, peer, 0)
    wanted = min(wanted, limits.PULL_ANSWER_BYTES_MAX)
    size = min(wanted, answers.shares.room(peer))
    if size >= min(wanted, COUNTED_BYTES_MIN):
        room = Reservation(answers, peer, size)
    else:
        room = await room_in_turn(answers, peer, min(wanted, COUNTED_BYTES_MIN), remaining_ms)
    if room.size < wanted:
        selection.max_bytes = room.size
    if selection.wait_ms > 0:
        room.await_answer()
    return room


async def room_in_turn(answers: Room, peer: str, size: int, remaining_ms: float | None) -> Reservation:
    """Room for an answer of up to `size` bytes; waits if there is none.

    Raises:
        Overloaded: there was none in time.
    """
    timeout_ms = ROOM_WAIT_MS_MAX if remaining_ms is None else min(remaining_ms, ROOM_WAIT_MS_MAX)
    return await answers.wait(peer, size, _CLOCK, timeout_ms)
