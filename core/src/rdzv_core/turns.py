"""Threads that wait for the same news: one at a time fetches it for all, the others sleep meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Turns"]

_T = TypeVar("_T")


class Turns:
    """Whose turn it is. No thread besides those that wait: one that leaves, for whatever reason, hands its turn over.

    Attributes:
        lock: Under which what is waited for changes. Unlike a condition it is left, whatever interrupts that.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed, self._taken = threading.Condition(self.lock), False

    def wait(self, news: Callable[[], _T | None], fetch: Callable[[], None], deadline: float) -> _T | None:
        """Take turns until there is news.

        Args:
            news: What is news to this thread; None: nothing is. Asked under the lock, so it returns at once. What
                it raises is raised, such as that the backend was closed.
            fetch: One step towards news, without the lock. After each, every thread asks for its news. What it
                raises is raised in this thread, and another goes on.
            deadline: On the monotonic clock.

        Returns:
            The news; None if there was none until the deadline.
        """
        found: _T | None = None

        def done() -> bool:
            nonlocal found
            found = news()
            return found is not None or time.monotonic() >= deadline

        while not self.take(done, fetch, deadline):
            pass
        return found

    def take(self, done: Callable[[], bool], fetch: Callable[[], None], deadline: float) -> bool:
        """Unless it is done: fetch for all, or wait for the thread that does, until `deadline` at most.

        Args:
            done: Asked under the lock. What it raises is raised.
            fetch: Fetches something, without the lock.
            deadline: On the monotonic clock.

        Returns:
            Whether it was done. If not, it may be now: ask again.
        """
        my_turn = False
        try:
            with self.lock:
                if done():
                    return True
                if self._taken:
                    self._changed.wait(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
                    return False
                my_turn = self._taken = True
            fetch()
            return False
        finally:
            if my_turn:
                # First of all: an interrupt of the rest must not leave a turn that no thread has.
                self._taken = False
                self.wake()

    def is_taken(self) -> bool:
        """Whether a thread fetches now."""
        return self._taken

    def wake(self) -> None:
        """Have every thread that waits ask again whether it is done."""
        with self.lock:
            self._changed.notify_all()
