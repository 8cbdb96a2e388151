"""What etcd tells of changes: those under a directory, from now on, until it ends.

A watch with a waitIndex tells one change of the past, and then nothing any more. So there is none here: etcd names the
index after which it tells everything, and what happened before that is read.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from rdzv_core.backend import Entry
from rdzv_transport import Change, Client, GapError, Reply, Request, StreamEndedError, number_of

from .tree import Tree

_ALIVE: Final = Request("GET", "/version")
"""Every member answers this by itself."""

_SILENCE: Final = 10.0
"""Seconds without a change after which the keys are read: nothing else shows that a member has lost the others."""

_GONE: Final = frozenset({"delete", "expire", "compareAndDelete"})

_QUERY: Final = urlencode({"wait": "true", "recursive": "true", "stream": "true"})


class Events:
    """The events under `prefix`. One thread at a time may receive.

    Attributes:
        since: Every one after this index is among them; 0 until etcd has named it.
    """

    def __init__(
        self,
        client: Client,
        tree: Tree,
        prefix: str,
        known: int,
        timeout: float,
        read: Callable[[Reply], Mapping[str, Any]],
        entry: Callable[[Mapping[str, Any]], Entry],
    ) -> None:
        """Ask for them, within `timeout` seconds; the answer may come later.

        Args:
            client: By which etcd is reached.
            tree: Where the keys are.
            prefix: Of the keys.
            known: The index of what is known of them.
            timeout: See above.
            read: Makes a JSON object of an answer.
            entry: Makes an entry of a file.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """
        self.since = 0
        self._tree = tree
        self._known = known
        self._read = read
        self._entry = entry
        request = Request("GET", f"{tree.directory(prefix)}?{_QUERY}")
        self._stream = client.open_stream(request, timeout, self._understand, _ALIVE, may_end=True)
        self._quiet_until = time.monotonic() + _SILENCE

    @property
    def confirmed(self) -> bool:
        """Whether etcd has answered."""
        return self.since > 0

    @property
    def age(self) -> float:
        """Seconds since they were asked for."""
        return time.monotonic() - self._stream.opened

    def receive(self, deadline: float) -> list[Change]:
        """All events that are there; if there is none, wait until `deadline`, or until etcd says anything.

        Raises:
            GapError: etcd has ended them, as it does after five minutes, and where they are not taken fast enough;
                or there was none for so long that the keys should be read.
            RendezvousConnectionError: The connection broke (`RendezvousDeniedError`: etcd does not let us).
        """
        try:
            changes = [change for one in self._stream.receive(min(deadline, self._quiet_until)) for change in one]
        except StreamEndedError as error:
            raise GapError from error
        if not self.since and self._stream.headers is not None:
            self._begin(number_of(self._stream.headers["x-etcd-index"]))
        now = time.monotonic()
        if changes:
            self._quiet_until = now + _SILENCE
        elif now >= self._quiet_until:
            raise GapError
        return changes

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def log_in_again(self) -> bool:
        """There is nothing to log in to: the password goes with every request."""
        return False

    def _begin(self, index: int) -> None:
        if index < self._known:
            # The service may have lost what is known, and count anew.
            raise GapError
        self.since = index

    def _understand(self, reply: Reply) -> list[Change]:
        event = self._read(reply)
        node, index = event["node"], number_of(event["node"]["modifiedIndex"])
        if event["action"] in _GONE:
            return [self._removal(node["key"], index)]
        name = None if node.get("dir") else self._tree.name(node["key"])
        return [] if name is None else [Change(name, self._entry(node), index)]

    def _removal(self, path: str, index: int) -> Change:
        """What it means for keys that the file or directory at `path` is gone."""
        if name := self._tree.name(path):
            return Change(name, None, index)
        if name := self._tree.key(path):
            return Change(name, None, index, below=True)
        # All of the run is.
        raise GapError
