"""What etcd tells of changes: those under a directory from an index on, until it ends.

Its stream has two traps (see etcd's `store`): of what happened before it was asked it tells one change, and then
nothing any more; and it ends without a word where a hundred changes were not taken in time. Both are found here.
"""

import time
from typing import Final
from urllib.parse import urlencode

from rdzv_transport import Change, Changes, Client, GapError, Reply, Request, StreamEndedError, number_of

from .tree import Tree
from .wire import FORGOTTEN, read_answer, read_entry

_ALIVE: Final = Request("GET", "/version")
"""Every member answers this by itself."""

_SILENCE: Final = 10.0
"""Seconds without a change after which the keys are read: nothing else shows that a member has lost the others."""

_PROMPT: Final = 1.0
"""Seconds for the head of an answer, which etcd sends at once. A proxy that keeps it back keeps back changes, too: then
the keys are read as often."""

_GONE: Final = frozenset({"delete", "expire", "compareAndDelete"})

_FULL: Final = 100
"""etcd keeps so many changes for a stream that does not take them; after as many it may have ended."""


class Events(Changes):
    """The events under `prefix`."""

    def __init__(self, client: Client, tree: Tree, prefix: str, known: int, timeout: float) -> None:
        """Ask for what has happened since the index `known`, within `timeout` seconds; the answer may come later.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """
        self._known = known
        self._tree = tree
        self._told = 0
        query = urlencode({"wait": "true", "recursive": "true", "stream": "true", "waitIndex": known + 1})
        request = Request("GET", f"{tree.directory(prefix)}?{query}")
        super().__init__(
            client.open_stream(request, timeout, self._understand, _ALIVE, may_end=True, begin=self._check_index)
        )
        self._quiet_until = time.monotonic() + _PROMPT

    @property
    def confirmed(self) -> bool:
        return self._stream.headers is not None

    def receive(self, deadline: float) -> list[Change] | None:
        was_confirmed = self.confirmed
        try:
            told = self._stream.receive(min(deadline, self._quiet_until))
        except StreamEndedError:
            # As after five minutes.
            self.over = True
            return None
        self._told += len(told)
        self.over = self.over or self._told >= _FULL
        now = time.monotonic()
        if not told and now >= self._quiet_until:
            self._quiet_until = now + (_SILENCE if self.confirmed else _PROMPT)
            return None
        if told or self.confirmed != was_confirmed:
            self._quiet_until = now + _SILENCE
        return [change for changes in told for change in changes]

    def _check_index(self, reply: Reply) -> None:
        if number_of(reply.headers["x-etcd-index"]) < self._known:
            # The service may have lost what is known, and count anew.
            raise GapError

    def _understand(self, reply: Reply) -> list[Change]:
        event = read_answer(reply, FORGOTTEN)
        if "errorCode" in event:
            raise GapError
        node, index = event["node"], number_of(event["node"]["modifiedIndex"])
        asked_at = number_of(reply.headers["x-etcd-index"])
        if index < asked_at:
            raise GapError
        # One that happened before etcd was asked, the last thing of all: it tells no other.
        is_last = index == asked_at
        self.over = self.over or is_last
        if event["action"] in _GONE:
            return [self._removal(node["key"], index)]
        name = None if node.get("dir") else self._tree.name(node["key"])
        if name is not None:
            return [Change(name, read_entry(node), index)]
        if is_last:
            # No key of this run: nothing that is known moves on, and the next stream would begin with it again.
            raise GapError
        return []

    def _removal(self, path: str, index: int) -> Change:
        """What it means for keys that the file or directory at `path` is gone."""
        if name := self._tree.name(path):
            return Change(name, None, index)
        if name := self._tree.key(path):
            return Change(name, None, index, below=True)
        # All of the run is.
        raise GapError
