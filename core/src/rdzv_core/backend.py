"""The contract between rdzv and a coordination service, for two kinds of backends.

A *register backend* is PyTorch's own: a compare-and-set register. A *key-value backend* has keys; it is what
all backends of this project are, and what rdzv derives everything else from: the register, the nodes' records,
leader election and the shared store.

An author writes a name and five methods, more where the service has watches, leases or conditional deletes, and
declares what the service cannot do. Backends do not retry, do not wrap values and do not keep state about rendezvous:
rdzv does, once for all. What the package says of its backend is a `BackendPlugin`.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final

from .deadline import time_left
from .endpoints import hide_login
from .envelope import Envelope
from .errors import RendezvousParameterError, RendezvousUnsupportedError
from .options import Option
from .parameters import RendezvousParameters

__all__ = [
    "ABSENT",
    "ANY",
    "CONTRACT",
    "MAX_KEY",
    "MAX_PAYLOAD",
    "STATE_KEY",
    "BackendPlugin",
    "Capability",
    "Entry",
    "Expect",
    "KeyValueBackend",
    "Lease",
    "PutOutcome",
    "PutResult",
    "RendezvousBackend",
    "Snapshot",
    "Token",
]

Token = Any
"""An opaque fencing token: whatever a backend needs to tell one version of a key from another. Only the backend that
made it looks inside. rdzv compares tokens with ``==`` and nothing else."""

MAX_PAYLOAD: Final = 256 * 1024
"""The largest payload, in bytes; rdzv refuses a larger one. A backend takes 1024 more, for rdzv's envelope."""
MAX_KEY: Final = 1024
"""The longest key, in characters, that every backend must take beside its prefix and the run's id; none is longer."""

CONTRACT: Final = 1
"""The version of this contract. It changes only with what makes a plugin for an earlier one wrong; optional methods and
fields with defaults are added without."""

STATE_KEY: Final = "control/state"
"""Where the state register lives among the keys of a key-value backend."""


class Capability(Enum):
    """What a service can do beyond reading and conditionally writing keys.

    A backend either declares a capability or gives the reason why its service lacks it. The
    conformance suite asserts every declared one and lists every other with its reason.
    """

    WATCH = "wakes a waiter when something changes, instead of being polled"
    LEASE = "removes the keys of an owner that died, by the service's own clock"
    MULTI_ENDPOINT = "takes several endpoints and goes on when one of them fails"
    DURABLE = "keeps what was written across a restart of the service"
    TLS = "encrypts the connection and can verify both ends"
    AUTH = "demands credentials"


class Expect(Enum):
    """What a conditional put may ask of the key instead of a token."""

    ABSENT = "absent"
    ANY = "any"


ABSENT: Final = Expect.ABSENT
"""Write only if the key does not exist."""
ANY: Final = Expect.ANY
"""Write whatever is there."""


class PutOutcome(Enum):
    """How a put ended, or a conditional delete."""

    APPLIED = "applied"
    """The value was written, or the key removed."""
    CONFLICT = "conflict"
    """The condition did not hold; nothing was changed."""
    UNKNOWN = "unknown"
    """The reply was lost: it may or may not have been applied, now or in a moment."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key's value as a service holds it.

    Attributes:
        value: The bytes that were put.
        token: The version of exactly this value (see `Token`).
        order: When the key was *created*, in the service's own order: of two keys under one
            prefix the one created first has the smaller number. Overwriting keeps it.
    """

    value: bytes
    token: Token
    order: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries at or under a key at one moment.

    Attributes:
        entries: Key to entry.
        revision: Opaque to all but the backend that made it; `KeyValueBackend.wait` takes the snapshot back.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    revision: Any = None


@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to a put.

    Attributes:
        outcome: Applied, conflict or unknown.
        entry: Applied: what was written, with its token. Conflict: what is there instead, or None. Unknown: None.
    """

    outcome: PutOutcome
    entry: Entry | None = None


class Lease(ABC):
    """The right of one owner to its keys, for as long as it keeps asking.

    The idea is etcd's: keys put with a lease vanish when it ends, all of them, and one that has ended never comes back.
    After C. Gray and D. Cheriton, "Leases", SOSP 1989. An outage of the service may end a lease or give it its time
    anew: one that lives has its keys, and of one that has ended `keep_alive` says so.

    Args:
        ttl: The granted time to live in seconds: never less than what was asked for.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl

    @property
    def ttl(self) -> float:
        """The granted time to live in seconds."""
        return self._ttl

    @abstractmethod
    def keep_alive(self, timeout: float) -> bool:
        """Start the time to live anew.

        Args:
            timeout: Seconds within which the call must end.

        Returns:
            False if the lease has ended: its keys are gone, or are going.

        Raises:
            RendezvousConnectionError: The service did not answer; the lease may still live.
        """

    @abstractmethod
    def revoke(self, timeout: float) -> None:
        """End the lease now and remove its keys. Ending an ended lease is fine.

        Raises:
            RendezvousConnectionError: The service did not answer; the lease runs out by itself.
        """


class RendezvousBackend(ABC):
    """A register backend: a register with a fencing token, as PyTorch's ``RendezvousBackend``.

    A class written for PyTorch's contract works here unchanged, with PyTorch's errors too. Everything then
    lives in the one register, which is correct, and meant for small worlds.

    The methods have no timeouts, so every call of the service needs one of its own, of a few seconds: a call
    that hangs makes rdzv late by as much. Other errors than rdzv's are taken for a lost connection, and
    tried again; except mistakes (TypeError, KeyError, ValueError and the like), which reach the caller at once.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which configuration chooses this backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register.

        Returns:
            The state and its fencing token, or None if there is no state.

        Raises:
            RendezvousConnectionError: The service could not be reached.
            RendezvousStateError: What is there is corrupt.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if `token` still matches it; with None, only if it is empty.

        Returns:
            What the register holds now, its token, and whether this call wrote it. None if the
            register is empty although a token was given. (rdzv believes no None, since there are
            classes for PyTorch that answer nothing else: it reads the register to learn what was done.)

        Raises:
            RendezvousConnectionError: The service could not be reached.
            RendezvousStateError: What is there is corrupt.
        """

    def wait_state(self, token: Token | None, timeout: float) -> None:
        """Return when the register may differ from `token` (None: empty), or after `timeout` seconds.

        The default polls, with jitter so that nodes that started together drift apart.
        """
        deadline = time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0:
            found = self.get_state()
            if (found[1] if found else None) != token:
                return
            time.sleep(min(remaining, random.uniform(0.1, 0.3)))  # noqa: S311 - no secret


class KeyValueBackend(RendezvousBackend):
    """A key-value backend: a service with keys.

    An instance belongs to one run: it puts its own prefix and the run's id before every key it is given. Keys are paths
    of one or more segments joined by ``/``; a segment has one or more of ``A-Z a-z 0-9 - _ . = ~`` and is never ``.``
    or ``..`` (rdzv escapes everything else), so every service takes them as they are. A key has up to `MAX_KEY`
    characters. *At or under* ``a/b`` means ``a/b`` itself and every key that begins with ``a/b/``; never ``a/bc``.

    Rules for every method:

    * It may be called from several threads at once, and after a fork (rebuild the client when the pid has changed).
    * Constructing is cheap and does not touch the network; the first call connects.
    * `timeout` is in seconds, enforced by the client even when the service hangs.
    * Reads are linearizable: a read sees every write that ended before it began.
    * Only errors of the `RendezvousError` family leave it, raised ``from`` the client's own.
    * After `close` every call raises `RendezvousConnectionError`; calls in progress end within a second.

    A whole one (but the suite needs a service that several processes see), for a dictionary in this process::

        import itertools
        import threading

        from rdzv_core import (
            ABSENT, ANY, BackendPlugin, Capability, Entry, KeyValueBackend, PutOutcome, PutResult,
            RendezvousConnectionError, Snapshot, escape,
        )

        SERVICE, LOCK, NUMBERS = {}, threading.Lock(), itertools.count(1)

        class DictBackend(KeyValueBackend):
            unsupported = dict.fromkeys(Capability, "A dictionary ends with its process.")

            def __init__(self, run_id):
                self._root, self._closed = f"rdzv/{escape(run_id)}/", False

            @property
            def name(self):
                return "dict"

            def _under(self, prefix):
                if self._closed:
                    raise RendezvousConnectionError("The backend is closed.")
                path = self._root + prefix
                return [key for key in SERVICE if key == path or key.startswith(path + "/")]

            def read(self, key, *, timeout):
                return self.read_all(key, timeout=timeout).entries.get(key)

            def read_all(self, prefix, *, timeout):
                with LOCK:
                    return Snapshot({key.removeprefix(self._root): SERVICE[key] for key in self._under(prefix)})

            def put(self, key, value, *, expect, lease=None, timeout):
                with LOCK:
                    self._under(key)
                    there, number = SERVICE.get(self._root + key), next(NUMBERS)
                    if expect is not ANY and expect != (ABSENT if there is None else there.token):
                        return PutResult(PutOutcome.CONFLICT, there)
                    order = there.order if there else number
                    entry = SERVICE[self._root + key] = Entry(value, str(number), order)
                    return PutResult(PutOutcome.APPLIED, entry)

            def delete(self, prefix, *, timeout):
                with LOCK:
                    for key in self._under(prefix):
                        del SERVICE[key]

            def close(self):
                self._closed = True

        BACKEND = BackendPlugin(
            "a dictionary, for the threads of one process", (), lambda params: (DictBackend(params.run_id), None),
            DictBackend, default_endpoint="this process", contract=1,
        )
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """What this backend declares that it can do."""

    unsupported: ClassVar[Mapping[Capability, str]] = {}
    """Every other capability, with the reason why the service has none."""

    min_lease_ttl: ClassVar[float] = 0.0
    """The shortest time to live, in seconds, that the service grants a lease (with `Capability.LEASE`)."""

    creates_at_once: int = 1
    """How many keys `create_all` makes in one step at most; 1: it is not overridden."""

    def background(self) -> "KeyValueBackend":
        """The same keys, by calls for which no other one has to wait: with them rdzv looks at heartbeats beside a wait.
        It is not closed by itself."""
        return self

    @property
    def local_address(self) -> str:
        """This machine's address as the service's clients see it: the source address towards it.

        The default suits services that only the processes of one machine can reach.
        """
        return "127.0.0.1"

    @abstractmethod
    def read(self, key: str, *, timeout: float) -> Entry | None:
        """Read one key; None if it does not exist.

        Raises:
            RendezvousConnectionError: The service could not be reached in time.
        """

    @abstractmethod
    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        """Read every key at or under `prefix`.

        Raises:
            RendezvousConnectionError: The service could not be reached in time.
        """

    @abstractmethod
    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """Write one key under a condition, in one atomic step.

        Args:
            key: Where.
            value: What; empty is fine. Up to `MAX_PAYLOAD` + 1024 bytes.
            expect: A token: only if the key still has exactly this version. `ABSENT`: only if it
                does not exist. `ANY`: always. A token that this backend did not make matches nothing.
            lease: From `open_lease`: the key vanishes with it. None: the key stays, and loses an earlier put's lease.
            timeout: Seconds.

        Returns:
            `UNKNOWN` whenever the write may have been applied but no answer came, `CONFLICT` if the lease has ended.

        Raises:
            RendezvousConnectionError: The service could not be reached; nothing was written.
        """

    @abstractmethod
    def delete(self, prefix: str, *, timeout: float) -> None:
        """Remove every key at or under `prefix`; none is fine. Need not be atomic.

        Raises:
            RendezvousConnectionError: The service did not answer; call again.
        """

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        """Remove one key, and none under it, if it still has this version, in one atomic step. Answers and errors are
        those of `put`. Optional: without it, keys that are deleted from a round's store leave some bytes there.

        Raises:
            RendezvousUnsupportedError: The service deletes without a condition only, so this was not overridden.
        """
        raise RendezvousUnsupportedError(f"The backend '{self.name}' deletes '{key}' without a condition only.")

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        """Make keys of which none exists, all or none, in one atomic step. Answers and errors are those of `put`.
        Optional: without it, rdzv puts the pages of a large world one by one.

        There are one or more, up to `creates_at_once`, with up to 1024 bytes each and `MAX_PAYLOAD` more in all. They
        stand beside each other, as ``a/1`` and ``a/2`` do, and have no keys under them.

        Raises:
            RendezvousUnsupportedError: The service makes one key at a time, so this was not overridden.
            RendezvousParameterError: The service is set to take less at once; nothing was written.
        """
        raise RendezvousUnsupportedError(f"The backend '{self.name}' makes {len(values)} keys one by one only.")

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        """Return a snapshot newer than `since` as soon as there is one; `since` itself after `timeout` seconds.

        `since` is any snapshot of this prefix, also an older one, or one that another service or backend has made: then
        its `revision` is of no known form, and what differs from its entries is news.

        Level-triggered: it may wake for nothing and skip intermediate states, but never misses the last one. The
        default polls with jitter; a service with `Capability.WATCH` overrides it.

        `since` says that nothing newer is known when the time is over, no more: silence cannot be told from no news. A
        backend that could not ask in time may raise the error instead, at a healthy service too: connecting takes time.

        Raises:
            RendezvousConnectionError: The service could not be reached in time. The caller goes on from `since`.
        """
        deadline = time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0:
            now = self.read_all(prefix, timeout=remaining)
            if now.entries != since.entries:
                return now
            time.sleep(max(0.0, min(deadline - time.monotonic(), random.uniform(0.1, 0.3))))  # noqa: S311 - no secret
        return since

    def open_lease(self, ttl: float, *, timeout: float) -> Lease:
        """Open a lease of at least `ttl` seconds (and at least `min_lease_ttl`).

        Raises:
            RendezvousUnsupportedError: The service has none (no `Capability.LEASE`).
            RendezvousConnectionError: The service could not be reached in time.
        """
        del ttl, timeout
        raise RendezvousUnsupportedError(
            f"The backend '{self.name}' has no leases: {self.unsupported.get(Capability.LEASE, 'no reason declared')}."
        )

    @abstractmethod
    def close(self) -> None:
        """Release every socket, thread and file. Closing twice is fine. Removes no key."""

    # The register, derived.

    register_timeout: ClassVar[float] = 10.0
    """Seconds that `get_state` and `set_state` may take, since PyTorch's signatures carry no timeout."""

    def get_state(self) -> tuple[bytes, Token] | None:
        entry = self.read(STATE_KEY, timeout=self.register_timeout)
        return None if entry is None else (Envelope.unpack(entry.value).payload, entry.token)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        check_payload(state, STATE_KEY)
        deadline = time.monotonic() + self.register_timeout
        now = self.read(STATE_KEY, timeout=self.register_timeout)
        mine = Envelope.wrap(state, writer="register", previous=Envelope.unpack(now.value) if now else None)
        if (now.token if now else None) == token:
            left = time_left(deadline, time.monotonic())
            put = self.put(STATE_KEY, mine.pack(), expect=ABSENT if token is None else token, timeout=left)
            now = put.entry
            if put.outcome is PutOutcome.UNKNOWN:
                now = self.read(STATE_KEY, timeout=time_left(deadline, time.monotonic()))
        if now is None:
            return None
        there = Envelope.unpack(now.value)
        return there.payload, now.token, there.nonce == mine.nonce

    def wait_state(self, token: Token | None, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        seen = self.read_all(STATE_KEY, timeout=timeout)
        entry = seen.entries.get(STATE_KEY)
        if (entry.token if entry else None) == token and (remaining := deadline - time.monotonic()) > 0:
            self.wait(STATE_KEY, seen, timeout=remaining)


@dataclass(frozen=True)
class BackendPlugin:
    """What a backend's entry point leads to; the entry point's name is the backend's.

    Attributes:
        summary: One line for ``rdzv backends``.
        options: Every option that this backend understands.
        create_backend: Makes the backend for parameters, and the `Store` that the rounds' stores are made of. Raises
            `RendezvousParameterError` for those it cannot use, and does not touch the network. A store of None, as
            nearly every plugin gives back, is one on the backend itself.
        backend_type: The backend's class, for its declared capabilities.
        default_endpoint: The endpoint when the user gives none; None where one is needed.
        example_endpoint: What one looks like, for the message to a user who gave none.
        describe_endpoint: Says for people what an endpoint means, in a few words and without secrets.
        check_shared: Raises `RendezvousParameterError` for parameters that give each process a service of its own, so
            that no other process finds it. The subcommands of ``rdzv`` about a run ask it: they start programs that use
            the same service, or look at one that others use.
        as_client: The parameters of a client that only looks, made of those of a node: it serves nothing, and makes
            nothing that it can do without. Options that the user has given stay.
        contract: The version of the contract (`CONTRACT`) that the plugin is written for, as a number: it says what its
            author knew, and not what is installed. One for another version is refused, with the package to change. The
            default stays 1: a plugin that names none was written for the first.
    """

    summary: str
    options: tuple[Option, ...]
    create_backend: Callable[[RendezvousParameters], tuple[RendezvousBackend, Any]]
    backend_type: type[RendezvousBackend]
    default_endpoint: str | None = None
    example_endpoint: str = "host:port"
    describe_endpoint: Callable[[str], str] = hide_login
    check_shared: Callable[[RendezvousParameters], None] = lambda params: None
    as_client: Callable[[RendezvousParameters], RendezvousParameters] = lambda params: params
    contract: int = 1


def check_payload(payload: bytes, key: str) -> None:
    """Refuse what some service would refuse, before anything is sent."""
    if len(payload) > MAX_PAYLOAD:
        raise RendezvousParameterError(
            f"The value for '{key}' has {len(payload)} bytes; at most {MAX_PAYLOAD} fit into one key. "
            "Split it over several keys, or store it elsewhere and put its address here."
        )
