"""Threads that wait for the same news: one at a time fetches it for all, the others sleep meanwhile."""

import threading
import time
from collections.abc import Callable


class Turns:
    """Whose turn it is.

    Attributes:
        changed: The condition under which what is waited for changes.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._taken = False

    def take(self, done: Callable[[], bool], fetch: Callable[[], None], deadline: float) -> bool:
        """Unless it is done: fetch for all, or wait for the thread that does, until `deadline` at most.

        Args:
            done: Asked under the condition. What it raises is raised.
            fetch: Fetches something, without the condition.
            deadline: On the monotonic clock.

        Returns:
            Whether it was done. If not, it may be now: ask again.
        """
        my_turn = False
        try:
            with self.changed:
                if done():
                    return True
                if self._taken:
                    self.changed.wait(max(0.0, deadline - time.monotonic()))
                    return False
                my_turn = self._taken = True
            fetch()
            return False
        finally:
            if my_turn:
                # First of all: an interrupt of the rest must not leave a turn that no thread has.
                self._taken = False
                self.wake()

    def take_until(self, done: Callable[[], bool], fetch: Callable[[], None], deadline: float) -> None:
        """Take turns (see `take`) until it is done, as it must be from the deadline on."""
        while not self.take(done, fetch, deadline):
            pass

    def is_taken(self) -> bool:
        """Whether a thread fetches now."""
        return self._taken

    def wake(self) -> None:
        """Have every thread that waits ask again whether it is done."""
        with self.changed:
            self.changed.notify_all()
