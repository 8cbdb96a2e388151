"""One watch of etcd's: what happens under a prefix from a revision on, until it ends."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rdzv.backend import Entry

from .client import Client
from .failures import AttemptError, NoReplyError, RefusedError
from .wire import KeySpace, read_entry

__all__ = ["Change", "Events", "GapError"]

_SILENCE: Final = 3
"""How many request timeouts without a word from an endpoint it is asked whether it lives. (A node that
keeps a lease alive hears more often than that, and never asks.)"""


class GapError(Exception):
    """etcd cannot tell what happened since then: the prefix must be read again."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one key.

    Attributes:
        name: Of the key.
        entry: What it holds since; None if it was deleted.
        revision: When, in etcd's order.
    """

    name: str
    entry: Entry | None
    revision: int


class Events:
    """The events under `prefix` from revision `start` on. One thread at a time may receive.

    Attributes:
        created: Whether etcd has confirmed the watch.
    """

    def __init__(self, client: Client, keys: KeySpace, prefix: str, start: int, timeout: float) -> None:
        """Ask for them, within `timeout` seconds; the confirmation may come later.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """
        self.created = False
        self._client = client
        self._keys = keys
        self._start = start
        request = {"create_request": keys.under(prefix) | {"start_revision": str(start)}}
        self._stream = client.open_stream("/v3/watch", request, timeout)

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._stream.opened

    def receive(self, deadline: float) -> list[Change]:
        """All events that are there; if there is none, wait until `deadline`, or until etcd says anything.

        Raises:
            GapError: See there.
            AttemptError: The watch ended or is broken.
            RefusedError: etcd does not let us watch.
        """
        silence = self._client.request_timeout * (_SILENCE if self.created else 1)
        quiet_until = max(self._stream.opened, self._stream.member.heard) + silence
        messages = self._stream.receive(min(quiet_until, deadline) - time.monotonic())
        if not messages and quiet_until <= time.monotonic() < deadline:
            self._make_sure(quiet_until, deadline)
        try:
            return [change for message in messages for change in self._understand(message["result"])]
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise NoReplyError(f"its answer is not etcd's: {str(messages)[:80]!r}") from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close_stream(self._stream)

    def demote(self) -> None:
        """Have the next watch opened at another endpoint, if there is one."""
        self._client.demote(self._stream.member)

    def log_in_again(self) -> bool:
        """Have the next watch log in anew; False if there is nobody to log in."""
        return self._client.forget_login(self._stream.token)

    def _make_sure(self, quiet_until: float, deadline: float) -> None:
        """Ask an endpoint that was silent for too long whether it lives: a frozen one keeps its connections."""
        patience = self._client.request_timeout
        try:
            self._client.ping(self._stream.member, min(patience, deadline - time.monotonic()))
        except AttemptError:
            # Too little time for an answer proves nothing, but silence adds up from wait to wait.
            if time.monotonic() < deadline or time.monotonic() > quiet_until + patience:
                raise

    def _understand(self, result: Mapping[str, Any]) -> list[Change]:
        if result.get("canceled"):
            if "compact_revision" in result:
                raise GapError
            raise RefusedError.of_watch(str(result.get("cancel_reason", "the watch was cancelled")))
        if result.get("created"):
            # A watch of revisions that the service has lost would wait until they come again.
            if int(result["header"]["revision"]) < self._start - 1:
                raise GapError
            self.created = True
        return [self._change(event) for event in result.get("events", ())]

    def _change(self, event: Mapping[str, Any]) -> Change:
        pair = event["kv"]
        entry = None if event.get("type") == "DELETE" else read_entry(pair)
        return Change(self._keys.name(pair), entry, int(pair["mod_revision"]))
