"""The core's one door to a backend: envelopes, retries within a deadline, replies that were lost.

Everything above speaks in payloads and deadlines (seconds on this process's monotonic clock);
everything below is one attempt at one call.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ..backend import ABSENT, Entry, KeyValueBackend, Lease, Outcome, Snapshot, Token, check_payload
from ..deadline import pause_within
from ..errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError, RendezvousStateError
from .envelope import REMEMBERED, Envelope

__all__ = ["Held", "Service", "View", "backoff"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

ATTEMPT: Final = 10.0
"""Seconds that one attempt of a call may take, so that a hung one leaves time for another."""


def backoff(random: random.Random) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling, capped at one second, with jitter.

    The jitter keeps nodes that failed together from coming back together (M. Brooker,
    "Exponential Backoff And Jitter", 2015).
    """
    ceiling = 0.05
    while True:
        yield random.uniform(ceiling / 2, ceiling)
        ceiling = min(1.0, ceiling * 2)


@dataclass(frozen=True, slots=True)
class Held:
    """What a key holds, unwrapped.

    Attributes:
        envelope: Who wrote it, its epoch, its payload.
        token: The service's version of it.
        order: When the key was created, in the service's order.
    """

    envelope: Envelope
    token: Token
    order: int

    @property
    def payload(self) -> bytes:
        """The bytes inside the envelope."""
        return self.envelope.payload


class View:
    """A snapshot whose entries are unwrapped when they are asked for, and only once."""

    def __init__(self, snapshot: Snapshot, before: "View | None" = None) -> None:
        """Wrap `snapshot`; entries that `before` holds unchanged are not unwrapped again."""
        self.snapshot = snapshot
        self._held: dict[str, Held] = {}
        if before is not None:
            for key, held in before._held.items():
                entry = snapshot.entries.get(key)
                if entry is not None and entry.token == held.token:
                    self._held[key] = held

    def names(self) -> list[str]:
        """Every key that the service holds here, tombstones and corrupt ones too."""
        return list(self.snapshot.entries)

    def get(self, key: str) -> Held | None:
        """What `key` holds; None if it is absent or deleted.

        Raises:
            RendezvousStateError: Its bytes are not ours.
        """
        held = self.raw(key)
        return None if held is None or held.envelope.deleted else held

    def raw(self, key: str) -> Held | None:
        """What `key` holds, tombstones included: what a conditional put must come after."""
        entry = self.snapshot.entries.get(key)
        if entry is None:
            return None
        if key not in self._held:
            self._held[key] = unwrap(entry)
        return self._held[key]

    def readable(self) -> Mapping[str, Held]:
        """Everything here that exists and is ours. What is corrupt is left out, and logged."""
        found = {}
        for key in self.snapshot.entries:
            try:
                held = self.get(key)
            except RendezvousStateError as error:
                logger.warning("ignoring '%s': %s", key, error)
                continue
            if held is not None:
                found[key] = held
        return found


def unwrap(entry: Entry) -> Held:
    """Read the envelope in an entry."""
    return Held(Envelope.unpack(entry.value), entry.token, entry.order)


class Service:
    """One node's dealings with the service, on top of a level-2 backend."""

    def __init__(
        self,
        backend: KeyValueBackend,
        writer: str,
        troubled: Callable[[RendezvousConnectionError], None] = lambda error: None,
    ) -> None:
        """Speak through `backend` as `writer`; `troubled` hears of every attempt that fails."""
        self.backend = backend
        self.writer = writer
        self._troubled = troubled
        self._closing = threading.Event()
        self._random = random.Random()  # noqa: S311 - jitter is no secret

    def read(self, key: str, deadline: float) -> Held | None:
        """Read one key; None if it is absent or deleted."""

        def attempt(timeout: float) -> Held | None:
            entry = self.backend.read(key, timeout=timeout)
            held = None if entry is None else unwrap(entry)
            return None if held is None or held.envelope.deleted else held

        return self._patiently(attempt, deadline)

    def read_all(self, prefix: str, deadline: float, before: View | None = None) -> View:
        """Read everything at or under `prefix`."""
        return self._patiently(lambda timeout: View(self.backend.read_all(prefix, timeout=timeout), before), deadline)

    def wait(self, prefix: str, since: View, deadline: float) -> View:
        """Wait until `prefix` differs from `since`; returns `since` itself when time runs out.

        Failures are not retried here: the caller loops anyway, and may have better to do.
        """
        timeout = deadline - time.monotonic()
        if timeout <= 0:
            return since
        now = self.backend.wait(prefix, since.snapshot, timeout=timeout)
        return since if now is since.snapshot else View(now, since)

    def put(
        self,
        key: str,
        payload: bytes,
        deadline: float,
        *,
        after: Held | None,
        lease: Lease | None = None,
        deleted: bool = False,
    ) -> tuple[bool, Held | None]:
        """Write one key under a condition.

        Args:
            key: Where.
            payload: What.
            deadline: Until when to try.
            after: The value that this one replaces; None: there must be none. No write is unconditional: its
                request may be applied again at any later time, and must not undo what was written meanwhile.
            lease: The lease that the key hangs on.
            deleted: Write a tombstone: a conditional delete.

        Returns:
            Whether this very write was applied, and what the key holds now.
        """
        check_payload(payload, key)
        expect: Token = after.token if after else ABSENT
        mine = Envelope.seal(payload, writer=self.writer, after=after.envelope if after else None, deleted=deleted)
        data = mine.pack()
        unheard = False

        def attempt(timeout: float) -> tuple[bool, Held | None]:
            nonlocal unheard
            put = self.backend.put(key, data, expect=expect, lease=lease, timeout=timeout)
            if put.outcome is Outcome.UNKNOWN:
                unheard = True
                # Sending the same envelope again is safe: if the first was applied, the second
                # loses against its own nonce, and we know.
                raise RendezvousConnectionError(f"The reply to writing '{key}' was lost.")
            held = None if put.entry is None else unwrap(put.entry)
            if put.outcome is Outcome.WON:
                return True, held
            won = held is not None and mine.nonce in (held.envelope.nonce, *held.envelope.past)
            # The first write of a key is never forgotten.
            is_old = held is not None and after is not None and held.envelope.epoch - mine.epoch >= REMEMBERED
            if unheard and not won and is_old:
                raise RendezvousError(
                    f"Whether '{key}' was written cannot be known: the reply was lost, and {REMEMBERED} others "
                    "or more have written it since."
                )
            return won, held

        return self._patiently(attempt, deadline)

    def delete(self, prefix: str, deadline: float) -> None:
        """Remove everything at or under `prefix`."""
        return self._patiently(lambda timeout: self.backend.delete(prefix, timeout=timeout), deadline)

    def open_lease(self, ttl: float, deadline: float) -> Lease:
        """Open a lease of at least `ttl` seconds."""
        return self._patiently(lambda timeout: self.backend.open_lease(ttl, timeout=timeout), deadline)

    def keep_alive(self, lease: Lease, deadline: float) -> bool:
        """Renew a lease; False if it has ended."""
        return self._patiently(lease.keep_alive, deadline)

    def revoke(self, lease: Lease, deadline: float) -> None:
        """End a lease and remove its keys."""
        return self._patiently(lease.revoke, deadline)

    def close(self) -> None:
        """End every retry and close the backend."""
        self._closing.set()
        self.backend.close()

    def _patiently(self, call: Callable[[float], _T], deadline: float) -> _T:
        started = time.monotonic()
        for pause in backoff(self._random):
            try:
                return call(max(0.001, min(deadline - time.monotonic(), ATTEMPT)))
            except RendezvousDeniedError:
                raise
            except RendezvousConnectionError as error:
                self._troubled(error)
                now = time.monotonic()
                paused = pause_within(deadline - now, pause)
                if paused is None or self._closing.wait(paused):
                    raise RendezvousConnectionError(
                        f"Every call to the service of backend '{self.backend.name}' has failed "
                        f"for {now - started:.1f} s: {error}"
                    ) from error
                logger.debug("trying again after %.2f s: %s", paused, error)
        raise AssertionError("backoff() never ends")
