"""The keys of one run in a store, and how they are read and written: the functions that run on a connection.

Heartbeats are written all the time, and looked at, but not waited for: nothing rings for them, a heartbeat costs one
call, and no count says in which order they were created. Their log tells only which there are, and a list of them is
not of one moment.
"""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Final

from rdzv_core.backend import ABSENT, Entry, Expect, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import contains

from .layout import Layout, is_on_page, is_quiet, queues_key, store_key, top_of
from .logs import Logs, Record
from .page import SharedPage
from .store import Connection, Store, attempts, peek, stores
from .values import Frame, Version, entry_of, frame_of, matches, nonce
from .watchers import Watchers

_STORES: Final = "rounds"
"""The top folder under which the round stores are."""
_READINGS: Final = 20
"""So often a log is read until none of the values that are not in it is later."""
_BETWEEN: Final = 1.0
"""Seconds for which who removes a run waits for a writer that is between the two calls of a write, or dead."""


class Attempt(Future[None]):
    """A put that its caller may give up at any moment, by `cancel`: either before the write, or too late."""

    def commit(self) -> None:
        """Begin the write.

        Raises:
            CancelledError: The caller has given up.
        """
        if not (self.running() or self.set_running_or_notify_cancel()):
            raise CancelledError


class Run:
    """Reads and writes the keys of one run. Keeps nothing but short cuts; any number of threads may use it.

    Args:
        root: What its keys begin with.

    Attributes:
        page: Where all is for which `is_on_page` holds.
        watchers: Who hears of changes.
    """

    def __init__(self, root: str) -> None:
        self._layout = layout = Layout(root)
        self._logs = Logs(layout)
        self.watchers = Watchers(layout)
        self.page = SharedPage(layout.page())

    def read(self, connection: Connection, path: str) -> Entry | None:
        """Read one key."""
        if is_on_page(path):
            self.watchers.meet(connection)
            return self.page.read(connection).entries.get(path)
        return self._settled(connection, path, frame_of(peek(connection.store, self._layout.value(path))))

    def read_page(self, connection: Connection, prefix: str) -> Snapshot:
        """Read everything at or under `prefix`, which is on the page."""
        self.watchers.meet(connection)
        return self.page.snapshot(connection, prefix)

    def read_all(self, connection: Connection, prefix: str) -> Mapping[str, Entry]:
        """Read everything at or under `prefix`, which is not on the page, as it was at one moment."""
        return {path: one.entry for path, one in self._list(connection, prefix).items() if one.entry is not None}

    def put(
        self, connection: Connection, path: str, value: bytes, expect: Token | Expect, attempt: Attempt
    ) -> PutResult:
        """Write one key under a condition."""
        if is_on_page(path):
            return self.page.put(connection, path, value, expect, attempt.commit)
        # A caller that expects something is mostly right: then the write itself is all it takes.
        there = expect.frame if isinstance(expect, Version) else None
        known = there is not None or expect is ABSENT
        if not known:
            there = self._there(connection, path)
        for _ in attempts(path):
            if not (known or matches(entry_of(there), expect)):
                if expect is ABSENT and is_quiet(path) and there is not None:
                    # Perhaps ours, by a call that was cut off before the log told of it.
                    self._logs.append(connection, path, there)
                return PutResult(PutOutcome.CONFLICT, self._settled(connection, path, there))
            creates, new = entry_of(there) is None, self._next(connection, path, there, value)
            attempt.commit()
            is_ours, there = self._write(connection, path, there, new)
            if is_ours:
                if creates or not is_quiet(path):
                    self._announce(connection, path, new)
                return PutResult(PutOutcome.APPLIED, new.entry)
            known = False
        raise AssertionError("attempts() raises")

    def delete(self, connection: Connection, prefix: str) -> None:
        """Remove everything at or under `prefix`."""
        if is_on_page(prefix):
            self.page.delete(connection, prefix)
            return
        logged = {path: one.frame for path, one in self._list(connection, prefix).items()}
        self._remove(connection, {prefix: None, **logged} if "/" in prefix else logged)
        if "/" not in prefix and hasattr(connection.store, "list_keys"):
            self._sweep(connection, prefix)
        if top_of(prefix) == _STORES and connection.descriptor is not None and hasattr(connection.store, "list_keys"):
            self._delete_stores(connection.store, prefix)

    def _there(self, connection: Connection, path: str) -> Frame | None:
        return frame_of(peek(connection.store, self._layout.value(path)))

    def _next(self, connection: Connection, path: str, there: Frame | None, value: bytes) -> Frame:
        """What to write after what is there: an overwrite, or a creation, which is counted before it is there."""
        if there is not None and there.value is not None:
            return there.then(value)
        order = 0 if is_quiet(path) else connection.store.add(self._layout.count(path), 1)
        number = there.number + 1 if there is not None else 1
        return Frame(nonce(), order, number, value)

    def _write(self, connection: Connection, path: str, there: Frame | None, new: Frame) -> tuple[bool, Frame | None]:
        """Replace a value if it is the expected one; returns whether it was, and what is there now."""
        expected = b"" if there is None else there.raw
        found = connection.store.compare_set(self._layout.value(path), expected, new.raw)
        if found == new.raw:
            return True, new
        # A missing key answers with what was expected of it.
        return False, None if found == expected else frame_of(found)

    def _announce(self, connection: Connection, path: str, frame: Frame) -> None:
        """Have the log tell of a write, and ring for it."""
        self._logs.append(connection, path, frame)
        if not is_quiet(path):
            self._ring(connection, [path])
            self._logs.note(path, frame)

    def _settled(self, connection: Connection, path: str, there: Frame | None) -> Entry | None:
        """What is there, once its log has it: its writer is about to append it, or dead."""
        if there is not None and not (is_quiet(path) or self._logs.has(connection, path, there)):
            self._announce(connection, path, there)
        return entry_of(there)

    def _list(self, connection: Connection, prefix: str) -> dict[str, Record]:
        """What is at or under `prefix`, as it was at one moment."""
        for _ in range(_READINGS):
            found, later = self._logs.read(connection, prefix)
            if not later:
                return found
            for path, frame in later.items():
                self._announce(connection, path, frame)
        raise RendezvousConnectionError(
            f"'{prefix}' was changed during each of {_READINGS} readings, so no moment of it is known"
        )

    def _remove(self, connection: Connection, logged: Mapping[str, Frame | None]) -> None:
        """Remove keys, whose last writes are given as their log has them. Their values stay, and say so; a key that
        vanished would block a client that reads it."""
        gone = [path for path, frame in logged.items() if self._remove_one(connection, path, frame)]
        if gone and not is_quiet(gone[0]):
            self._ring(connection, gone)

    def _ring(self, connection: Connection, paths: list[str]) -> None:
        # Who watched when it wrote the page leads, it seems, and watches still; but no round's store.
        page = self.page.known(connection.session.id) if top_of(paths[0]) != _STORES else None
        writer = {page.wakeup} - {"", self.page.wakeup} if page is not None else set()
        self.watchers.ring(connection, paths, writer)

    def _remove_one(self, connection: Connection, path: str, logged: Frame | None) -> bool:
        there = self._there(connection, path)
        while there is not None and there.value is not None:
            removed = there.then(None)
            is_ours, there = self._write(connection, path, there, removed)
            if is_ours:
                self._logs.append(connection, path, removed)
                return True
        if logged is None:
            return False
        # It was removed before, and the log does not tell of that.
        self._logs.append(connection, path, there or logged.then(None))
        return True

    def _sweep(self, connection: Connection, top: str) -> None:
        """Remove what removing has left of everything below a top folder. (torch lists keys from 2.10 on.)

        Its own log and its watchers become empty and stay, and so does its count: a writer may be about to append.
        """
        values = self._layout.value(top)
        keys = [key for key in connection.store.list_keys() if contains(values, key)]
        paths = [key.removeprefix(self._layout.value("")) for key in keys]
        if any(entry_of(self._there(connection, path)) is not None for path in paths):
            # Written since, or by who died before the log told of it, or is still at it.
            time.sleep(_BETWEEN)
            self._remove(connection, dict.fromkeys(paths))
        for key in keys:
            connection.store.delete_key(key)
        self._logs.clear(connection, top)
        self.watchers.clear(connection)

    def _delete_stores(self, store: Store, prefix: str) -> None:
        """Remove the round stores at or under a prefix."""
        values, queues = f"{self._layout.root}store/{prefix}/", queues_key(self._layout.root, prefix)
        for key in store.list_keys():
            if contains(queues, key):
                place = key.removeprefix(queues_key(self._layout.root, ""))
                for queue in _queues(peek(store, key) or b""):
                    while store.queue_len(name := store_key(self._layout.root, place, queue)):
                        with suppress(stores().QueueEmptyError):
                            store.queue_pop(name, False)
                store.delete_key(key)
            elif key.startswith(values):
                store.delete_key(key)


def _queues(raw: bytes) -> Iterator[str]:
    """The names of queues, of which each stands on a line. What rdzv has not written names none."""
    for line in raw.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(name := json.loads(line), str):
                yield name
