"""How a node's calls reach the service: at once, or through the engine's adapters."""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rdzv_core import (
    ABSENT,
    Capability,
    Entry,
    Expect,
    Lease,
    PutOutcome,
    PutResult,
    Snapshot,
    Token,
)
from rdzv_core.backend import STATE_KEY
from rdzv_core.envelope import Envelope

import rdzv
from rdzv.engine.client import DecodedSnapshot
from rdzv.engine.heartbeats import HeartbeatLeases, Look
from rdzv.engine.records import HEARTBEATS
from rdzv.engine.register_adapter import RegisterAdapter
from rdzv.settings import RendezvousSettings

from .fiber import Fibers
from .network import Answer, NetworkLink, Silence

if TYPE_CHECKING:
    import random

__all__ = [
    "LEVELS",
    "Adapted",
    "Connection",
    "Direct",
    "OvertimeError",
    "connect",
    "contents",
    "garbled",
    "state_key",
    "written",
]

LEVELS = ("leases", "heartbeats", "register")
"""What the service has: keys and leases, keys only (with heartbeat leases), a register."""

_REGISTER = "register"
_UNLIMITED = 5.0
"""Seconds that a call of a register may take, whose contract has no timeouts."""
_ROUNDING = 1e-6
_deadline = ContextVar[float]("deadline")
"""The moment at which a fiber's work has to end, on the clock of its node: each fiber has its own."""


class OvertimeError(BaseException):
    """A call is to take longer than it may. No code that goes on after errors may go on after this one."""


class Connection(ABC):
    """What the runner speaks to."""

    backend: rdzv.KeyValueBackend

    @abstractmethod
    def call(self, attempt: Callable[[float], Any], timeout: float, answer: Answer) -> None:
        """Make one attempt at one call."""

    @abstractmethod
    def wait(self, prefix: str, since: DecodedSnapshot, seconds: float, answer: Answer) -> None:
        """Answer the snapshot that differs from `since`; None when time runs out."""

    def drop(self) -> None:  # noqa: B027 - most have nothing to drop
        """Its node is dead."""


class Direct(Connection):
    """Each call is one exchange with the service, which is applied at one instant."""

    def __init__(self, link: NetworkLink) -> None:
        """Call over `link`."""
        self.backend = link.service
        self._link = link

    def call(self, attempt: Callable[[float], Any], timeout: float, answer: Answer) -> None:
        """See `Connection`."""
        self._link.exchange(lambda: attempt(timeout), timeout, answer)

    def wait(self, prefix: str, since: DecodedSnapshot, seconds: float, answer: Answer) -> None:
        """See `Connection`."""
        self._link.watch(prefix, since.encoded, seconds, answer)


class Adapted(Connection):
    """Each call is what the engine's adapters make of it: several exchanges, one after the other."""

    def __init__(self, backend: rdzv.KeyValueBackend, wire: "_Wire", fibers: Fibers) -> None:
        """Call through `backend`, which blocks, and calls over `wire` what it is made of."""
        self.backend = backend
        self._wire = wire
        self._fibers = fibers

    def call(self, attempt: Callable[[float], Any], timeout: float, answer: Answer) -> None:
        """See `Connection`."""
        self._fibers.run(self._wire, lambda: self._wire.within(timeout, lambda: attempt(timeout)), answer)

    def wait(self, prefix: str, since: DecodedSnapshot, seconds: float, answer: Answer) -> None:
        """See `Connection`."""
        seen = since.encoded
        work = lambda: self.backend.wait(prefix, seen, timeout=seconds)  # noqa: E731 - it is called in the fiber
        self._fibers.run(self._wire, lambda: self._wire.within(seconds, work), answer)

    def drop(self) -> None:
        """See `Connection`."""
        self._fibers.kill(self._wire)


def connect(
    level: str,
    link: NetworkLink,
    fibers: Fibers,
    clock: Callable[[], float],
    settings: RendezvousSettings,
    observers: Callable[[], int] = lambda: 1,
) -> Connection:
    """Connect one node.

    Args:
        level: One of `LEVELS`.
        link: Its way to the service.
        fibers: What blocks.
        clock: The node's own clock.
        settings: Its settings.
        observers: See `HeartbeatLeases`.
    """
    if level == "leases":
        return Direct(link)
    wire = _Wire(link, fibers, clock)
    keys: rdzv.KeyValueBackend = _Keys(wire)
    if level == "register":
        keys = RegisterAdapter(_Register(wire), clock=clock, sleep=wire.sleep, rng=link.rng)
    interval = settings.keep_alive_interval.total_seconds()
    # It may ask twice.
    beside = partial(wire.beside, 2 * interval)
    leases = HeartbeatLeases(keys, interval, clock, str(settings.attempt), observers, link.rng, beside)
    return Adapted(leases, wire, fibers)


def written(level: str, key: str, value: bytes) -> Iterable[tuple[str, bytes]]:
    """What was written, whatever the adapters made of it: the keys that the coroutines know, and their values."""
    found = _keys_in_register(value) if level == "register" else {key: value}
    for name, data in found.items():
        if not name.startswith(HEARTBEATS):
            yield name, data if level == "leases" else data.partition(b"\n")[2]


def state_key(level: str) -> str:
    """The key that a service holds the state under, whatever the adapters made of it."""
    return _REGISTER if level == "register" else STATE_KEY


def living(level: str, everything: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """What the coroutines see of what a service holds: without what belongs to a lease that has ended."""
    if level == "leases":
        return everything
    found = {name: value.partition(b"\n") for name, value in contents(level, everything).items()}
    over = {
        name.encode() for name, (value, _, _) in found.items() if name.startswith(HEARTBEATS) and value == b"expired"
    }
    names = {name: line.partition(b" ")[0] for name, (line, _, _) in found.items()}
    return {name: found[name][2] for name, lease in names.items() if f"{HEARTBEATS}/".encode() + lease not in over}


def contents(level: str, everything: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The keys among all that a service holds, whatever the adapters made of them, with their bytes."""
    if level != "register":
        return everything
    # A service that has lost its data has no register until the next write.
    return _keys_in_register(everything[_REGISTER]) if _REGISTER in everything else {}


def garbled(level: str, key: str, everything: Mapping[str, bytes]) -> tuple[str, bytes]:
    """The key of the service to overwrite, and with what, so that one key above it holds what is not ours."""
    if level != "register":
        return key, b"not ours"
    envelope = Envelope.unpack(everything[_REGISTER])
    content = json.loads(envelope.payload)
    content["keys"][key] = "not ours"
    return _REGISTER, replace(envelope, payload=json.dumps(content).encode()).pack()


def _keys_in_register(value: bytes) -> dict[str, bytes]:
    keys = json.loads(Envelope.unpack(value).payload)["keys"]
    return {name: base64.b64decode(entry[0]) for name, entry in keys.items() if len(entry) == 3}


class _Wire:
    """A link for code that blocks, and that must end in time, however many calls it makes."""

    def __init__(self, link: NetworkLink, fibers: Fibers, clock: Callable[[], float]) -> None:
        self.link = link
        self.clock = clock
        self._fibers = fibers

    def within(self, timeout: float, work: Callable[[], Any]) -> Any:
        """Work that has to end in time."""
        _deadline.set(self.clock() + timeout)
        return work()

    def beside(self, seconds: float, look: Look) -> Future[object]:
        """Begin a look, which has so many seconds."""
        done = Future[object]()

        def end(found: object, error: BaseException | None) -> None:
            if error is None:
                done.set_result(found)
            else:
                done.set_exception(error)

        self._fibers.run(self, lambda: self.within(seconds, look), end)
        return done

    def exchange(self, apply: Callable[[], Any], timeout: float | None) -> Any:
        """Ask the service; without a timeout, since the contract has none there, for some seconds."""
        self._check(timeout or 0.0)
        seconds = _UNLIMITED if timeout is None else timeout
        return self._fibers.block(lambda answer: self.link.exchange(apply, seconds, answer))

    def watch(self, prefix: str, since: Snapshot, seconds: float) -> Any:
        self._check(seconds)
        return self._fibers.block(lambda answer: self.link.watch(prefix, since, seconds, answer))

    def _check(self, timeout: float) -> None:
        over = self.clock() + timeout - _deadline.get()
        if over > _ROUNDING:
            raise OvertimeError(f"A call of several that has to end in time was given {over:.3f} s more than was left.")

    def sleep(self, seconds: float) -> None:
        self._fibers.block(lambda answer: self.link.sleep(seconds, answer))


class _Keys(rdzv.KeyValueBackend):
    """A service with keys and without leases."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.WATCH, Capability.DURABLE})

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._service = wire.link.service
        self.creates_at_once = self._service.creates_at_once

    @property
    def name(self) -> str:
        return "simulated keys"

    def read(self, key: str, *, timeout: float) -> Entry | None:
        found: Entry | None = self._wire.exchange(lambda: self._service.read(key, timeout=timeout), timeout)
        return found

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        found: Snapshot = self._wire.exchange(lambda: self._service.read_all(prefix, timeout=timeout), timeout)
        return found

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        try:
            put: PutResult = self._wire.exchange(
                lambda: self._service.put(key, value, expect=expect, timeout=timeout), timeout
            )
        except Silence:
            return PutResult(PutOutcome.UNKNOWN)
        return put

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        try:
            done: PutOutcome = self._wire.exchange(lambda: self._service.create_all(values, timeout=timeout), timeout)
        except Silence:
            return PutOutcome.UNKNOWN
        return done

    def delete(self, prefix: str, *, timeout: float) -> None:
        self._wire.exchange(lambda: self._service.delete(prefix, timeout=timeout), timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        now: Snapshot | None = self._wire.watch(prefix, since, timeout)
        return since if now is None else now

    def close(self) -> None:
        pass


class _Register(rdzv.RendezvousBackend):
    """PyTorch's contract, and nothing else: a node that waits polls."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._service = wire.link.service
        self._rng: random.Random = wire.link.rng

    @property
    def name(self) -> str:
        return "simulated register"

    def get_state(self) -> tuple[bytes, Token] | None:
        entry = self._wire.exchange(lambda: self._service.read(_REGISTER, timeout=_UNLIMITED), None)
        return None if entry is None else (entry.value, entry.token)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        expect = ABSENT if token is None else token
        put = self._wire.exchange(lambda: self._service.put(_REGISTER, state, expect=expect, timeout=_UNLIMITED), None)
        if put.entry is None or self._wire.link.is_mute():
            return None
        return put.entry.value, put.entry.token, put.outcome is PutOutcome.APPLIED

    def wait_state(self, token: Token | None, timeout: float) -> None:
        """As the contract's own default, by the clock of its node: another one may be slower."""
        clock = self._wire.clock
        deadline = clock() + timeout
        while (remaining := deadline - clock()) > 0:
            found = self.get_state()
            if (found[1] if found else None) != token:
                return
            self._wire.sleep(min(remaining, self._rng.uniform(0.1, 0.3)))
