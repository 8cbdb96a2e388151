"""etcd's keys and values: what its v2 API is asked."""

import binascii
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from rdzv_core.backend import ANY, Entry, Expect, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import ChangeWatch, Client, Poll, Reply, ReplyLostError, Request, Watches, number_of

from .events import Events
from .tree import Tree, files
from .wire import COMPARE_FAILED, EXISTS, NOT_EMPTY, NOT_FOUND, read_answer, read_entry

_MOST: Final = 0.75
"""A key that has more of its time to live left than this part need not be kept alive yet."""


class Keys:
    """The keys of one run, as one process reaches them: a `rdzv_transport.changes.Source`.

    Args:
        client: By which etcd is reached.
        root: The run's directory, such as ``/rdzv/job-7``.
        ttl: Seconds, whole ones, after which etcd removes a key that is neither written nor kept alive; None: never.
    """

    def __init__(self, client: Client, root: str, ttl: int | None) -> None:
        self.client = client
        """By which etcd is reached."""
        self.newest = 0
        """The newest index of all that was read."""
        self.lost = 0
        """The newest of what etcd has lost."""
        self._tree = Tree(root)
        self._ttl = {} if ttl is None else {"ttl": str(ttl)}
        self._kept = time.monotonic()
        self._keeping = threading.Lock()
        self._watches = Watches(partial(ChangeWatch, self))

    def read(self, key: str, timeout: float) -> Entry | None:
        """Read one key."""

        def find(reply: Reply) -> Entry | None:
            answer = read_answer(reply, NOT_FOUND)
            return None if "errorCode" in answer else read_entry(answer["node"])

        return self.client.call(Request("GET", f"{self._tree.file(key)}?quorum=true"), timeout, find)

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """Read every key at or under `prefix`."""
        return self.client.call(self._reading(prefix), timeout, self._select)

    def open_reading(self, prefix: str, timeout: float) -> Poll[Snapshot]:
        """The same as a poll."""
        return self.client.open_poll(self._reading(prefix), 0.0, timeout, self._select)

    def changes(self, prefix: str, known: int, timeout: float) -> Events:
        """Ask for what happens at or under `prefix`."""
        return Events(self.client, self._tree, prefix, known, timeout)

    def put(self, key: str, value: bytes, expect: Token | Expect, timeout: float) -> PutResult:
        """Write one key; see `KeyValueBackend.put`."""
        deadline = time.monotonic() + timeout
        if not isinstance(expect, Expect):
            put = self._put(key, value, {"prevIndex": str(expect)}, timeout)
            lost = put.outcome is PutOutcome.CONFLICT
            return replace(put, entry=self.read(key, deadline - time.monotonic())) if lost else put
        while (remaining := deadline - time.monotonic()) > 0:
            put = self._put(key, value, {"prevExist": "false"}, remaining)
            if put.outcome is PutOutcome.CONFLICT and expect is ANY:
                # Overwriting keeps the order only if it is asked for as such.
                put = self._put(key, value, {"prevExist": "true"}, deadline - time.monotonic())
            elif put.outcome is PutOutcome.CONFLICT:
                put = replace(put, entry=self.read(key, deadline - time.monotonic()))
            # What was there may have been removed meanwhile; then the condition holds now.
            if put.outcome is not PutOutcome.CONFLICT or put.entry is not None:
                return put
        raise RendezvousConnectionError(f"Others created and removed '{key}' for {timeout:.1f} s. Try again.")

    def delete_version(self, key: str, index: int, timeout: float) -> PutOutcome:
        """Remove one key if this is its modifiedIndex."""

        def judge(reply: Reply) -> PutOutcome:
            answer = read_answer(reply, NOT_FOUND, COMPARE_FAILED)
            return PutOutcome.CONFLICT if "errorCode" in answer else PutOutcome.APPLIED

        request = Request("DELETE", f"{self._tree.file(key)}?prevIndex={index}", repeatable=False)
        try:
            return self.client.call(request, timeout, judge)
        except ReplyLostError:
            return PutOutcome.UNKNOWN

    def delete(self, prefix: str, timeout: float) -> None:
        """Remove every key at or under `prefix`, and the directories that are empty then."""
        deadline = time.monotonic() + timeout
        self._delete(f"{self._tree.directory(prefix)}?recursive=true", timeout)
        for directory in self._tree.above(prefix):
            if not self._delete(f"{directory}?dir=true", deadline - time.monotonic()):
                break

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """Wait for a change. The first wait for a prefix costs a call, or two, and so do ten seconds without a change;
        others cost none."""
        return self._watches.wait(prefix, since, timeout)

    def close(self) -> None:
        """End every connection."""
        self.client.close()
        self._watches.close()

    def keep_alive(self, timeout: float) -> None:
        """If they have a time to live, and it is time: give every key of the run its own anew.

        Not those that have most of it left: others do the same.
        """
        deadline = time.monotonic() + timeout
        ttl = int(self._ttl.get("ttl", 0))
        if not self._must_be_kept(ttl):
            return

        def fading(reply: Reply) -> list[str]:
            listed = files(read_answer(reply, NOT_FOUND).get("node", {"dir": True}))
            return [file["key"] for file in listed if file.get("ttl", ttl) < ttl * _MOST]

        listing = Request("GET", f"{self._tree.everything()}?recursive=true&quorum=true")
        # Without a value, and without waking a waiter.
        body = urlencode({"refresh": "true", "prevExist": "true", **self._ttl}).encode()
        for path in self.client.call(listing, timeout, fading):
            request = Request("PUT", self._tree.url(path), body)
            self.client.call(request, deadline - time.monotonic(), lambda reply: read_answer(reply, NOT_FOUND))

    def _must_be_kept(self, ttl: int) -> bool:
        """Whether it is time to keep the run's keys alive; says so to one thread only."""
        with self._keeping:
            now = time.monotonic()
            if not ttl or now - self._kept < ttl / 4:
                return False
            self._kept = now
            return True

    def _reading(self, prefix: str) -> Request:
        return Request("GET", f"{self._tree.directory(prefix)}?recursive=true&quorum=true")

    def _select(self, reply: Reply) -> Snapshot:
        answer = read_answer(reply, NOT_FOUND)
        index = number_of(reply.headers["x-etcd-index"])
        found = {} if "errorCode" in answer else self._entries(answer["node"])
        self.newest = max(self.newest, index)
        return Snapshot(found, index)

    def _put(self, key: str, value: bytes, condition: Mapping[str, str], timeout: float) -> PutResult:
        text = binascii.b2a_base64(value, newline=False).decode("ascii")
        body = urlencode({"value": text, **condition, **self._ttl}).encode()

        def judge(reply: Reply) -> PutResult:
            answer = read_answer(reply, NOT_FOUND, COMPARE_FAILED, EXISTS)
            if "errorCode" in answer:
                return PutResult(PutOutcome.CONFLICT)
            return PutResult(PutOutcome.APPLIED, read_entry(answer["node"]))

        request = Request("PUT", self._tree.file(key), body, repeatable=False)
        try:
            return self.client.call(request, timeout, judge)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)

    def _delete(self, target: str, timeout: float) -> bool:
        """Whether it is gone: it may hold something, too."""

        def judge(reply: Reply) -> bool:
            return bool(read_answer(reply, NOT_FOUND, NOT_EMPTY).get("errorCode") != NOT_EMPTY)

        return self.client.call(Request("DELETE", target), timeout, judge)

    def _entries(self, node: Mapping[str, Any]) -> dict[str, Entry]:
        named = ((self._tree.name(file["key"]), file) for file in files(node))
        return {name: read_entry(file) for name, file in named if name is not None}
