"""Which lane a request goes to, and when.

With one lane a rank of a pipeline waits while the others compute, and a rank alone leaves cores idle. A few sequences
are fastest together in one lane, since a step costs hardly more for eight rows than for one; further ones open further
lanes.
"""

import threading
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from exo_celery.runner.meter import Load
from exo_celery.runner.reply import Reply

# Rows a lane takes before the next one is opened: in a pipeline, where other ranks would idle, and on a rank alone.
FILL: Final = 8
FILL_ALONE: Final = 16


class Taker(Protocol):
    """What a lane does for the dispatcher."""

    def submit(self, reply: Reply) -> None:
        """Take a request."""

    def cancel(self, reply: Reply) -> None:
        """Give up a request."""


class Dispatcher:
    """Lets at most `slots` requests and `tokens` positions of cache into the lanes; the others wait in line.

    The line is ordered by priority, then by arrival.

    `on_lanes` hears how many lanes are in use, whenever that changes.
    """

    def __init__(
        self,
        lanes: Sequence[Taker],
        slots: int,
        tokens: int,
        fill: int = FILL,
        on_lanes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._lanes = lanes
        self._fill, self._on_lanes = fill, on_lanes
        self._in_use = 0
        self._slots = slots
        self._tokens = tokens
        self._lock = threading.Lock()
        self._line: list[Reply] = []
        self._lane_of: dict[Reply, int] = {}

    def submit(self, reply: Reply) -> None:
        """Let a request in, or let it wait in line."""
        with self._lock:
            insort(self._line, reply, key=lambda waiting: waiting.priority)
            self._let_in()

    def cancel(self, reply: Reply) -> None:
        """Give up a request, wherever it is."""
        with self._lock:
            lane = self._lane_of.get(reply)
            waiting = reply in self._line
            if waiting:
                self._line.remove(reply)
        if lane is not None:
            self._lanes[lane].cancel(reply)
        elif waiting:
            reply.finish("cancelled")

    def done(self, reply: Reply) -> None:
        """Take note that a request has ended, and let the next one in."""
        with self._lock:
            self._lane_of.pop(reply, None)
            self._let_in()

    def load(self) -> Load:
        """Return what is going on."""
        with self._lock:
            return Load(len(self._lane_of), len(self._line), self._in_use)

    def _let_in(self) -> None:
        while self._line and self._has_room(self._line[0]):
            reply = self._line.pop(0)
            loads = [0] * len(self._lanes)
            for lane in self._lane_of.values():
                loads[lane] += 1
            self._lane_of[reply] = choose_lane(loads, self._fill)
            self._lanes[self._lane_of[reply]].submit(reply)
        in_use = len(set(self._lane_of.values()))
        if in_use != self._in_use:
            self._in_use = in_use
            self._on_lanes(in_use)

    def _has_room(self, reply: Reply) -> bool:
        """Say whether a request fits beside those that run; one alone always does."""
        if not self._lane_of:
            return True
        taken = sum(other.most_tokens for other in self._lane_of)
        return len(self._lane_of) < self._slots and taken + reply.most_tokens <= self._tokens


def choose_lane(loads: Sequence[int], fill: int) -> int:
    """Return the lane for one more row: the first that is not filled, else the one with the fewest rows."""
    unfilled = next((lane for lane, load in enumerate(loads) if load < fill), None)
    return unfilled if unfilled is not None else min(range(len(loads)), key=loads.__getitem__)
