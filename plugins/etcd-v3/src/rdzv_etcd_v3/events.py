"""One watch of etcd's: what happens under a prefix from a revision on, until it ends."""

import time
from collections.abc import Mapping
from typing import Any

from rdzv_transport import Change, GapError, number_of

from .client import Client
from .wire import KeySpace, read_entry


class Events:
    """The events under `prefix` after the revision `since`. One thread at a time may receive.

    Attributes:
        confirmed: Whether etcd has confirmed the watch.
        over: A watch ends with an error only.
    """

    over = False

    def __init__(self, client: Client, keys: KeySpace, prefix: str, since: int, timeout: float) -> None:
        """Ask for them, within `timeout` seconds; the confirmation may come later.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """
        self._since = since
        self.confirmed = False
        self._client = client
        self._keys = keys
        request = {"create_request": keys.under(prefix) | {"start_revision": str(since + 1)}}
        self._stream, self._login = client.watch(request, timeout, self._understand)

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._stream.opened

    def receive(self, deadline: float) -> list[Change]:
        """All events that are there; if there is none, wait until `deadline`, or until etcd says anything.

        Raises:
            GapError: See there.
            RendezvousConnectionError: The watch ended or is broken (`RendezvousDeniedError`: etcd does not let us).
        """
        return [change for changes in self._stream.receive(deadline) for change in changes]

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def log_in_again(self) -> bool:
        """Have the next watch log in anew; False if there is no user to log in."""
        return self._client.forget_login(self._login)

    def _understand(self, message: Mapping[str, Any]) -> list[Change]:
        result = message["result"]
        if result.get("canceled"):
            if "compact_revision" in result:
                raise GapError
            raise self._client.cancelled(str(result.get("cancel_reason", "the watch was cancelled")))
        if result.get("created"):
            # A watch of revisions that the service has lost would wait until they come again.
            if number_of(result["header"]["revision"]) < self._since:
                raise GapError
            self.confirmed = True
        return [self._change(event) for event in result.get("events", ())]

    def _change(self, event: Mapping[str, Any]) -> Change:
        pair = event["kv"]
        entry = None if event.get("type") == "DELETE" else read_entry(pair)
        return Change(self._keys.name(pair), entry, number_of(pair["mod_revision"]))
