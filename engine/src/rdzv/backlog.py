"""Work that is not waited for: a thread of its own does it, so that what may block holds up this thread alone."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.threads import start_thread

__all__ = ["Backlog"]

_MOST: Final = 1000
"""Pieces of work that wait at most, beside those that the thread has taken."""


class Backlog:
    """Such work of one kind, in order. What comes when too much of it waits is dropped, and counted.

    The thread is there as long as there is work. Where the system has no room for it, the work waits for the next that
    comes. A fork's copy begins empty.
    """

    def __init__(self, thread: str, dropped: Callable[[int], None]) -> None:
        """Have no work.

        Args:
            thread: The name of the thread.
            dropped: Says how many pieces were dropped, on the thread, when what came before them is done.
        """
        self._thread_name = thread
        self._tell_dropped = dropped
        self._begin_empty()
        os.register_at_fork(after_in_child=self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], None]] = deque()
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def add(self, work: Callable[[], None]) -> None:
        """Have some work done; returns at once."""
        with self._lock:
            if len(self._waiting) < _MOST:
                self._waiting.append(work)
            else:
                self._dropped += 1
            self._start()

    def flush(self, timeout: float) -> None:
        """Wait until all is done that was added before, so many seconds at most."""
        with self._lock:
            self._start()
            if self._thread is not threading.current_thread():
                self._changed.wait_for(lambda: self._thread is None, timeout)
            is_refused = self._thread is None and self._waiting
        if is_refused:
            # There is no room for a thread, and it is now or never.
            self._do_all()

    def _start(self) -> None:
        if self._thread is None and self._waiting:
            try:
                self._thread = start_thread(self._do_all, name=self._thread_name)
            except RendezvousConnectionError:
                return

    def _do_all(self) -> None:
        while True:
            with self._lock:
                works, dropped = list(self._waiting), self._dropped
                self._waiting.clear()
                self._dropped = 0
                if not works:
                    self._thread = None
                    self._changed.notify_all()
                    return
            for work in works:
                _do(work)
            if dropped:
                self._tell_dropped(dropped)


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        # Shown as one that has ended the thread, but it goes on.
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
