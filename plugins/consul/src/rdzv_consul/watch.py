"""Waiting for changes: one query per prefix that Consul answers when there is something new.

A thread per prefix asks, and asks again; any number of threads wait for what it learns. Every answer is the whole
state under the prefix, so that none is missed for good; the first one is asked for plainly, unless a waiter has
just read what is there.
"""

import threading
import time
from typing import Final

from rdzv.backend import Snapshot
from rdzv.errors import RendezvousError

from .client import Hold
from .kv import Keys, Revision

__all__ = ["Watches"]

_IDLE_WATCHES: Final = 4
"""How many prefixes keep their query though nobody waits for them now."""

_LINGER: Final = 5.0
"""Seconds for which a query is repeated though nobody waits."""

_FRESH: Final = 1.0
"""A snapshot that was received less than so many seconds ago need not be read again."""

_PAUSE: Final = 0.02
"""Seconds before the next query if the last one brought nothing: while a prefix is empty, Consul wakes who
waits for it at every write nearby."""


class Watches:
    """The watches of one client."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        # The one that was waited for last is last.
        self._by_prefix: dict[str, _Watch] = {}

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        deadline = time.monotonic() + timeout
        with self._lock:
            watch = self._by_prefix.pop(prefix, None) or _Watch(self._keys, prefix)
            self._by_prefix[prefix] = watch
            watch.users += 1
            idle = [one for one in self._by_prefix.values() if not one.users]
            for one in idle[:-_IDLE_WATCHES]:
                del self._by_prefix[one.prefix]
                one.hold.release()
        try:
            return watch.wait(since, deadline)
        finally:
            watch.left = time.monotonic()
            with self._lock:
                watch.users -= 1


class _Watch:
    """What is known of one prefix, and the thread that keeps it up to date."""

    def __init__(self, keys: Keys, prefix: str) -> None:
        self.prefix = prefix
        self.users = 0
        self.left = 0.0
        self.hold = Hold()
        self._keys = keys
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # The last answer, and when it was asked for.
        self._answer: tuple[Snapshot, float] | None = None
        self._failure: RendezvousError | None = None

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        known = since.revision if isinstance(since.revision, Revision) else Revision(0, float("-inf"))
        with self._changed:
            failure = self._failure
            while True:
                self._keys.client.check_open()
                if news := self._news(since, known):
                    return news
                if self._failure is not None and self._failure is not failure:
                    raise type(self._failure)(str(self._failure)) from self._failure
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return since
                if self._thread is None:
                    self._start(known)
                self._changed.wait(remaining)

    def _news(self, since: Snapshot, known: Revision) -> Snapshot | None:
        """What a caller who knows `since` should see, if anything."""
        if self._answer is None:
            return None
        answer, asked = self._answer
        # What was asked for after `since` was received is newer, even if Consul has lost data and counts anew.
        is_newer = answer.revision.index >= known.index or asked >= known.received
        return answer if is_newer and answer.entries != since.entries else None

    def _start(self, known: Revision) -> None:
        after = known.index if time.monotonic() - known.received < _FRESH else 0
        name = f"rdzv-consul-watch-{self.prefix}"
        self._thread = threading.Thread(target=self._follow, args=(after,), name=name, daemon=True)
        self._thread.start()

    def _follow(self, after: int) -> None:
        """Ask for what is newer than the index `after` (0: for what is there), again and again."""
        try:
            while self._goes_on():
                asked = time.monotonic()
                answer = self._keys.read_all(self.prefix, self._keys.client.patience, after=after, hold=self.hold)
                after = answer.revision.index
                if not self._take(answer, asked):
                    time.sleep(_PAUSE)
        except RendezvousError as error:
            with self._changed:
                self._thread, self._failure = None, error
                self._changed.notify_all()

    def _goes_on(self) -> bool:
        with self._changed:
            if self.users or time.monotonic() - self.left < _LINGER:
                return True
            self._thread = None
            return False

    def _take(self, answer: Snapshot, asked: float) -> bool:
        """Take in an answer; returns whether it brought anything."""
        with self._changed:
            is_news = self._answer is None or answer.entries != self._answer[0].entries
            self._answer = answer, asked
            self._changed.notify_all()
        return is_news
