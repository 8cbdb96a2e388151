"""Lines to a service that is far away, which tell how many round trips have passed: by a clock, or counted."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rdzv_conformance.proxy import FaultProxy

__all__ = ["LAG", "CountedLine", "Line", "TimedLine"]

LAG: Final = 0.2
"""Seconds of a round trip: so many that those of the processors count for little."""
_TRIPS_TO_SETTLE: Final = 30
"""Trips after which nodes wait that have called."""
_LOOK: Final = 0.01
_STILL: Final = 10
"""So many looks in a row at which nothing has passed, and nothing computes: all wait for what is held back."""
_STILL_TO_SETTLE: Final = 150
"""So many looks in a row at which that is so: nodes wait that have called. It is longer than the second that a leader
leaves between two statuses: one that is due shall not be counted."""
_MOST_TO_SETTLE: Final = 8.0
"""Seconds after which it does not matter what still passes: what nodes ask now and then."""


class TimedLine(FaultProxy):
    """Each answer comes later by `LAG`, and so does each connection. What passes on it is what users wait for."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.slow(LAG)

    def trips(self) -> float:
        """How many could have passed until now."""
        return time.monotonic() / LAG

    def settle(self) -> None:
        """Wait until those wait that have called."""
        time.sleep(_TRIPS_TO_SETTLE * LAG)

    def call(self, orders: Iterable[Callable[[], None]]) -> None:
        """Give orders to call, all at once."""
        for order in orders:
            order()


class CountedLine(FaultProxy):
    """Holds back answers and connections until nothing else passes and no process beneath this one computes, then lets
    all of them go: one round trip.

    So a slow machine changes nothing, and what nodes wait for beside the service counts for nothing. Of nodes that
    call at once each does when the service has answered the one before: where the service may answer several of them in
    one go, such as Consul, it does not.
    """

    def __init__(self, port: int) -> None:
        self._held: list[tuple[socket.socket, bytes]] = []
        self._trips = self._still = 0
        self._is_calling = False
        self._next = threading.Condition()
        super().__init__(port)
        self._start(self._count)

    def trips(self) -> float:
        """How many have passed until now."""
        return self._trips

    def settle(self) -> None:
        """Wait until nothing passes any more, or only what nodes ask now and then."""
        self._await_stillness(_STILL_TO_SETTLE)

    def call(self, orders: Iterable[Callable[[], None]]) -> None:
        """Give orders to call, all within one round trip, each when nothing passes any more of what the one before has
        caused."""
        self._is_calling = True
        try:
            for order in orders:
                order()
                # With one look at the processes among them.
                self._await_stillness(_STILL + 1)
        finally:
            self._is_calling = False

    def pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        self._await_next(near)  # it is connected then
        while data := near.recv(1 << 20):
            self._still = 0
            far.sendall(data)

    def pass_replies(self, near: socket.socket, far: socket.socket) -> None:
        while data := far.recv(1 << 20):
            self._hold(near, data)
        self._await_next(near)

    def _await_stillness(self, looks: int) -> None:
        """Wait until nothing has passed for so many looks in a row, or for `_MOST_TO_SETTLE` seconds."""
        deadline = time.monotonic() + _MOST_TO_SETTLE
        self._still = 0
        while self._still < looks and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def _hold(self, near: socket.socket, data: bytes) -> int:
        with self._next:
            self._still = 0
            self._held.append((near, data))
            return self._trips

    def _await_next(self, near: socket.socket) -> None:
        now = self._hold(near, b"")
        with self._next:
            self._next.wait_for(lambda: self._trips > now or self._closed.is_set())

    def _count(self) -> None:
        while not self._closed.wait(_LOOK):
            with self._next:
                self._still += 1
                if self._still % _STILL:
                    continue
                if "R" in _states(os.getpid()):
                    self._still = 0
                if self._is_calling or not (self._held and self._still):
                    continue
                going, self._held, self._still = self._held, [], 0
                # Before they go: with the first of them a node may be done, and the trips be asked for.
                self._trips += 1
                for near, data in going:
                    with suppress(OSError):
                        near.sendall(data)
                self._next.notify_all()
        with self._next:
            self._next.notify_all()


def _states(pid: int) -> Iterator[str]:
    """Those of the threads of all processes beneath one, as ps has them: R computes, or would with a processor."""
    for thread in _threads(pid):
        for child in map(int, _read(thread / "children").split()):
            for its in _threads(child):
                yield _read(its / "stat").rpartition(") ")[2][:1]
            yield from _states(child)


def _threads(pid: int) -> list[Path]:
    with suppress(OSError):
        return [*Path(f"/proc/{pid}/task").iterdir()]
    return []


def _read(path: Path) -> str:
    """What is there; nothing: the process, or this thread of it, has ended."""
    with suppress(OSError):
        return path.read_text()
    return ""


Line = TimedLine | CountedLine
