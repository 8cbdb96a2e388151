"""The retrying client: envelopes, retries within a deadline, lost replies. The engine's only way to a backend.

Everything above speaks in payloads and deadlines (seconds on this process's monotonic clock);
everything below is one attempt at one call.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rdzv_core.backend import ABSENT, Entry, KeyValueBackend, Lease, PutOutcome, Snapshot, Token, check_payload
from rdzv_core.deadline import pause_within
from rdzv_core.envelope import NONCE_HISTORY, Envelope, OtherVersionError
from rdzv_core.errors import (
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
    RendezvousStateError,
)
from rdzv_core.text import printable

from .aside import adopt_loggers, node_logger, speaking_aside
from .codec import WAY_OUT

logger = node_logger(__name__)

_T = TypeVar("_T")

ATTEMPT: Final = 10.0
"""Seconds that one attempt of a call may take, so that a hung one leaves time for another."""

RATE: Final = 500
"""Attempts a second that all nodes together make at a service that does not answer, each in each of its loops."""

_REFUSED: Final = 5.0
"""Seconds between two attempts at what the service refuses, unless a lease has to be renewed sooner: each may be a
login, which costs a service a lot."""

_LOGIN: Final = 1.0
"""Seconds that an attempt at least gets after a refusal."""


def backoff(random: random.Random, most: Callable[[], float] = lambda: 1.0) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling, capped at `most` seconds, with jitter.

    The jitter keeps nodes that failed together from coming back together (M. Brooker,
    "Exponential Backoff And Jitter", 2015).
    """
    ceiling = 0.05
    while True:
        yield random.uniform(ceiling / 2, ceiling)
        ceiling = min(most(), ceiling * 2)


def longest_pause(nodes: int, interval: float) -> float:
    """The most seconds between two attempts of one of so many nodes: so long that all together make `RATE` attempts a
    second, but no longer than an interval between keep-alives, or a second, if that is longer."""
    # `backoff` draws three quarters of it on average.
    return max(1.0, min(nodes / (0.75 * RATE), interval))


class Pauses:
    """Seconds to wait before each further attempt at something.

    Attributes:
        refused: See `__init__`.
    """

    def __init__(
        self,
        random: random.Random,
        longest: Callable[[], float] = lambda: 1.0,
        interval: float = _REFUSED,
        refused: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Begin with the shortest.

        Args:
            random: Where the jitter comes from.
            longest: The most seconds while the service does not answer.
            interval: Seconds between two keep-alives: the most while it refuses.
            refused: Seconds for which a call that it refuses is tried again; 0: who asks is not in a run, to which a
                refusal would be an outage.
        """
        self._random = random
        self._longest = longest
        self._interval = interval
        self.refused = refused
        self._backoff = backoff(random, longest)

    def after(self, error: BaseException) -> float:
        """The pause after an error."""
        if isinstance(error, RendezvousDeniedError):
            most = min(self._interval, max(_REFUSED, self._longest()))
            return self._random.uniform(most / 2, most)
        return next(self._backoff)

    def within(self, left: float, error: BaseException) -> float | None:
        """The pause after an error; None: of the seconds that are left there are too few for another attempt."""
        pause = self.after(error)
        if isinstance(error, RendezvousDeniedError):
            # A last attempt that is cut short would hide why the service refuses: a login takes its time.
            pause = min(pause, left - _LOGIN)
            return pause if pause > 0 else None
        return pause_within(left, pause)


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """What a key holds, unwrapped.

    Attributes:
        envelope: Its writer, its epoch, its payload.
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


def present(versioned: VersionedValue | None) -> VersionedValue | None:
    """What a key holds; None if that is a tombstone: then it counts as absent."""
    return None if versioned is None or versioned.envelope.deleted else versioned


def same_version(one: VersionedValue | None, other: VersionedValue | None) -> bool:
    """Whether a key holds what it held: then a conditional write has failed for another reason than its condition."""
    return (one and one.token) == (other and other.token)


MOST_IGNORED: Final = 10
"""Keys that cannot be read, and are named in the log."""

_UNREAD: Final = Envelope(b"", "", "")
"""Stands for an envelope that is written over, whatever it is."""


class DecodedSnapshot:
    """A snapshot whose entries are unwrapped when they are asked for, and only once."""

    def __init__(self, snapshot: Snapshot, before: "DecodedSnapshot | None" = None) -> None:
        """Wrap `snapshot`; entries that `before` holds unchanged are not unwrapped again."""
        self.encoded = snapshot
        known, entries = before._versioned if before is not None else {}, snapshot.entries
        self._versioned: dict[str, VersionedValue] = {
            key: value for key, value in known.items() if key in entries and entries[key].token == value.token
        }
        self._ignored: set[str] = before._ignored & entries.keys() if before is not None else set()

    def names(self) -> list[str]:
        """Every key that the service holds here, tombstones and corrupt ones too."""
        return list(self.encoded.entries)

    def get(self, key: str) -> VersionedValue | None:
        """What `key` holds; None if it is absent or deleted.

        Raises:
            RendezvousStateError: Its bytes are not ours.
        """
        return present(self.raw(key))

    def raw(self, key: str) -> VersionedValue | None:
        """What `key` holds, tombstones included: what a conditional put must come after."""
        versioned = self._versioned.get(key) or unwrap(self.encoded.entries.get(key), key)
        if versioned is not None:
            self._versioned[key] = versioned
        return versioned

    def replaceable(self, key: str) -> VersionedValue | None:
        """The same, to be written over whatever it is: bytes that are not ours have no past."""
        try:
            return self.raw(key)
        except RendezvousStateError:
            entry = self.encoded.entries[key]
            return VersionedValue(_UNREAD, entry.token, entry.order)

    def valid_entries(self) -> Mapping[str, VersionedValue]:
        """Everything here that exists and is ours. What is corrupt is left out, and logged."""
        found = {}
        for key in self.encoded.entries:
            try:
                versioned = self.get(key)
            except RendezvousStateError as error:
                self.ignore(key, error)
                continue
            if versioned is not None:
                found[key] = versioned
        return found

    def ignore(self, key: str, error: RendezvousStateError) -> None:
        """Log that what `key` holds cannot be read: once, whatever it holds in later snapshots; of many keys the
        first."""
        if key not in self._ignored:
            self._ignored.add(key)
            if len(self._ignored) <= MOST_IGNORED:
                logger.warning("ignoring '%s': %s", printable(key), str(error).removeprefix(_named(key)))
            elif len(self._ignored) == MOST_IGNORED + 1:
                logger.warning("ignoring further keys that cannot be read")


def unwrap(entry: Entry | None, key: str) -> VersionedValue | None:
    """Read the envelope in the entry of `key`, if there is one.

    Raises:
        RendezvousStateError: It is none; the error names the key, and the way out.
    """
    try:
        return None if entry is None else VersionedValue(Envelope.unpack(entry.value), entry.token, entry.order)
    except OtherVersionError as error:
        raise OtherVersionError(f"{_named(key)}{error}") from error
    except RendezvousStateError as error:
        raise RendezvousStateError(f"{_named(key)}{error}. {WAY_OUT}") from error


def _named(key: str) -> str:
    return f"'{printable(key)}': "


@dataclass
class Write:
    """A conditional write: one envelope, which is sent until there is an answer.

    Attributes:
        backend: Where it is sent.
        key: Which key it writes.
        mine: What it writes.
        previous: The value that this one replaces; None: there must be none.
        lease: The lease that the key belongs to.
        attempts: How often it was sent.
        reply_lost: At least once no answer came.
    """

    backend: KeyValueBackend
    key: str
    mine: Envelope
    previous: VersionedValue | None
    lease: Lease | None
    attempts: int = 0
    reply_lost: bool = False

    def attempt(self, timeout: float) -> tuple[bool, VersionedValue | None]:
        """Send it once.

        Returns:
            Whether this very write was applied, and what the key holds now.
        """
        self.attempts += 1
        expect: Token = self.previous.token if self.previous else ABSENT
        put = self.backend.put(self.key, self.mine.pack(), expect=expect, lease=self.lease, timeout=timeout)
        if put.outcome is PutOutcome.UNKNOWN:
            self.reply_lost = True
            # Sending the same envelope again is safe: if the first was applied, the second
            # loses against its own nonce, and we know.
            raise RendezvousConnectionError(f"The reply to writing '{self.key}' was lost.")
        versioned = unwrap(put.entry, self.key)
        if put.outcome is PutOutcome.APPLIED or versioned is None:
            return put.outcome is PutOutcome.APPLIED, versioned
        applied = not self.mine.supersedes(versioned.envelope)
        # The first write of a key is never forgotten.
        is_old = self.previous is not None and versioned.envelope.epoch - self.mine.epoch >= NONCE_HISTORY
        if self.reply_lost and not applied and is_old:
            raise RendezvousError(
                f"Whether '{self.key}' was written cannot be known: the reply was lost, and {NONCE_HISTORY} others "
                "or more have written it since."
            )
        return applied, versioned


class RetryingClient:
    """The retrying client of one node, on top of a key-value backend."""

    def __init__(
        self,
        backend: KeyValueBackend,
        writer: str,
        on_error: Callable[[RendezvousConnectionError, float], None] = lambda error, lasted: None,
        pauses: Callable[[], Pauses] = lambda: Pauses(random.Random()),  # noqa: S311 - jitter is no secret
    ) -> None:
        """Speak through `backend` as `writer`.

        Args:
            backend: The service.
            writer: Who writes, for the envelopes.
            on_error: Hears of every attempt that fails, and how many seconds it took.
            pauses: Makes the pauses between the attempts of one call.
        """
        self.backend = backend
        self.writer = writer
        self._on_error = on_error
        self._pauses = pauses
        self._closing = threading.Event()
        adopt_loggers()

    def read(self, key: str, deadline: float) -> VersionedValue | None:
        """Read one key; None if it is absent or deleted."""
        return self.with_retries(
            lambda timeout: present(unwrap(self.backend.read(key, timeout=timeout), key)), deadline
        )

    def read_all(self, prefix: str, deadline: float, before: DecodedSnapshot | None = None) -> DecodedSnapshot:
        """Read everything at or under `prefix`."""
        return self.with_retries(
            lambda timeout: DecodedSnapshot(self.backend.read_all(prefix, timeout=timeout), before), deadline
        )

    @speaking_aside
    def wait(self, prefix: str, since: DecodedSnapshot, deadline: float) -> DecodedSnapshot:
        """Wait until `prefix` differs from `since`; returns `since` itself when time runs out.

        Failures are not retried here: the caller loops anyway, and may have better to do.
        """
        timeout = deadline - time.monotonic()
        if timeout <= 0:
            return since
        now = self.backend.wait(prefix, since.encoded, timeout=timeout)
        return since if now is since.encoded else DecodedSnapshot(now, since)

    def wait_for(
        self,
        found: Callable[[DecodedSnapshot], bool],
        prefix: str,
        since: DecodedSnapshot,
        deadline: float,
        least: float = 0.0,
    ) -> DecodedSnapshot:
        """Wait until `prefix` holds what is wanted, also while the service is away for a while.

        Args:
            found: Whether a snapshot has it.
            prefix: What to watch.
            since: The first snapshot to look at.
            deadline: Until when to wait.
            least: Seconds that the service gets to answer a read, however near the deadline is.

        Returns:
            The last snapshot, whether it has it or the time is up.

        Raises:
            RendezvousConnectionError: The service refuses, or did not answer a read in time.
        """
        pauses = self._pauses()
        while not found(since) and time.monotonic() < deadline:
            try:
                since = self.wait(prefix, since, deadline)
            except RendezvousConnectionError as error:
                if isinstance(error, RendezvousDeniedError) and not pauses.refused():
                    raise
                # The read is retried until its deadline; the pause is for a service that answers reads only.
                self._closing.wait(max(0.0, min(pauses.after(error), deadline - time.monotonic())))
                since = self.read_all(prefix, max(deadline, time.monotonic() + least), since)
        return since

    def put(
        self,
        key: str,
        payload: bytes,
        deadline: float,
        *,
        previous: VersionedValue | None,
        lease: Lease | None = None,
        deleted: bool = False,
    ) -> tuple[bool, VersionedValue | None]:
        """Write one key under a condition.

        Args:
            key: Where.
            payload: What.
            deadline: Until when to try.
            previous: The value that this one replaces; None: there must be none. No write is unconditional: its
                request may be applied again at any later time, and must not undo what was written meanwhile.
            lease: The lease that the key belongs to.
            deleted: Write a tombstone: a conditional delete.

        Returns:
            Whether this very write was applied, and what the key holds now.
        """
        return self.with_retries(self.write(key, payload, previous, lease=lease, deleted=deleted).attempt, deadline)

    def write(
        self, key: str, payload: bytes, previous: VersionedValue | None, *, deleted: bool, lease: Lease | None = None
    ) -> Write:
        """What `put` sends, and sends again."""
        check_payload(payload, key)
        before = previous.envelope if previous else None
        mine = Envelope.wrap(payload, writer=self.writer, previous=before, deleted=deleted)
        return Write(self.backend, key, mine, previous, lease)

    def create_all(self, payloads: Mapping[str, bytes], deadline: float) -> bool:
        """Make keys of which none exists, all or none of them, in one step.

        Returns:
            Whether that is known to be done. If not, a reply was lost, a key is there, or the service takes less at
            once: then what a `put` of each key says is true of it.
        """
        values = {key: Envelope.wrap(payload, writer=self.writer).pack() for key, payload in payloads.items()}

        def attempt(timeout: float) -> bool:
            try:
                return self.backend.create_all(values, timeout=timeout) is PutOutcome.APPLIED
            except RendezvousParameterError as error:
                logger.debug("%d keys are not made at once: %s", len(values), error)
                return False

        return self.with_retries(attempt, deadline)

    def delete(self, prefix: str, deadline: float) -> None:
        """Remove everything at or under `prefix`."""
        return self.with_retries(lambda timeout: self.backend.delete(prefix, timeout=timeout), deadline)

    def open_lease(self, ttl: float, deadline: float) -> Lease:
        """Open a lease of at least `ttl` seconds."""
        return self.with_retries(lambda timeout: self.backend.open_lease(ttl, timeout=timeout), deadline)

    def keep_alive(self, lease: Lease, deadline: float) -> bool:
        """Renew a lease; False if it has ended."""
        return self.with_retries(lease.keep_alive, deadline)

    def revoke(self, lease: Lease, deadline: float) -> None:
        """End a lease and remove its keys."""
        return self.with_retries(lease.revoke, deadline)

    def close(self) -> None:
        """End every retry and close the backend."""
        self._closing.set()
        self.backend.close()

    @speaking_aside
    def with_retries(self, call: Callable[[float], _T], deadline: float) -> _T:
        """Attempt a call, which is given the seconds that it may take, until there is an answer."""
        started = began = time.monotonic()
        pauses = self._pauses()
        while True:
            try:
                return call(max(0.001, min(deadline - began, ATTEMPT)))
            except RendezvousConnectionError as error:
                now = time.monotonic()
                self._on_error(error, now - began)
                is_refused = isinstance(error, RendezvousDeniedError)
                until = min(deadline, started + pauses.refused()) if is_refused else deadline
                paused = pauses.within(until - now, error)
                if paused is None or self._closing.wait(paused):
                    if is_refused or began == started:
                        # For how long it has been refused, the node knows; a single call says it itself.
                        raise
                    raise RendezvousConnectionError(
                        f"Every call to the service of backend '{self.backend.name}' has failed "
                        f"for {now - started:.1f} s: {error}"
                    ) from error
                logger.debug("trying again after %.2f s: %s", paused, error)
                began = time.monotonic()
