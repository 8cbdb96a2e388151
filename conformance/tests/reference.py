"""A small coordination service and its backend, by which the suite tests itself.

The service keeps everything in the memory of one process and speaks JSON over loopback. It is right in
every respect; `faults` makes it wrong, one respect at a time.
"""

import base64
import contextlib
import itertools
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rdzv import KeyValueBackend
from rdzv_core import ABSENT, ANY, Capability, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.endpoints import parse_endpoints, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_core.threads import in_thread
from rdzv_transport import ProcessLocal

from rdzv_conformance import ConnectTo
from rdzv_conformance.processes import Link, Processes, Worker


@dataclass(frozen=True)
class Stored:
    """A key's value, its version and place in the creation order, and the lease it belongs to."""

    value: bytes
    version: int
    order: int
    lease: int | None = None


@dataclass
class Granted:
    """A lease: how long it lives without being kept alive, and when it ends by the service's clock."""

    ttl: float
    ends: float


def at_or_under(key: str, prefix: str) -> bool:
    """As the contract defines it."""
    return key == prefix or key.startswith(f"{prefix}/")


class Service:
    """The rules, without a network. Every method is atomic."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.entries: dict[str, Stored] = {}
        self.leases: dict[int, Granted] = {}
        self.log: list[str] = []
        # Another life begins elsewhere, so that nothing of an earlier one is taken for its own.
        self.first = secrets.randbits(40)
        self.numbers = itertools.count(self.first)

    @property
    def revision(self) -> int:
        """How many changes there were, counted from where this life began."""
        return self.first + len(self.log)

    def read(self, key: str) -> Stored | None:
        """The key's value."""
        return self.entries.get(key)

    def list(self, prefix: str) -> dict[str, Stored]:
        """Everything at or under a key."""
        return {key: stored for key, stored in self.entries.items() if at_or_under(key, prefix)}

    def matches(self, there: Stored | None, expect: str | int | None) -> bool:
        """Whether a put may write; `expect` is ``any``, ``absent``, a version, or None, which nothing matches."""
        if expect == "any":
            return True
        return there is None if expect == "absent" else there is not None and there.version == expect

    def put(self, key: str, value: bytes, expect: str | int | None, lease: int | None) -> tuple[bool, Stored | None]:
        """Whether it was written, and the present entry."""
        there = self.entries.get(key)
        if not self.matches(there, expect) or (lease is not None and lease not in self.leases):
            return False, there
        version = next(self.numbers)
        self.write(key, Stored(value, version, there.order if there else version, lease))
        return True, self.entries[key]

    def delete(self, prefix: str) -> None:
        """Remove everything at or under a key."""
        for key in self.list(prefix):
            self.write(key, None)

    def delete_version(self, key: str, version: int | None) -> bool:
        """Whether it was removed."""
        there = self.entries.get(key)
        if there is None or there.version != version:
            return False
        self.write(key, None)
        return True

    def create_all(self, values: Mapping[str, bytes]) -> bool:
        """Whether all were made."""
        if any(key in self.entries for key in values):
            return False
        for key, value in values.items():
            version = next(self.numbers)
            self.write(key, Stored(value, version, version))
        return True

    def write(self, key: str, stored: Stored | None) -> None:
        """The only place that changes a key."""
        if stored is None:
            del self.entries[key]
        else:
            self.entries[key] = stored
        self.log.append(key)
        self.changed.notify_all()

    def is_newer(self, prefix: str, since: int) -> bool:
        """Whether anything at or under a key changed after the log had this length."""
        if not self.first <= since <= self.revision:
            return True
        return any(at_or_under(key, prefix) for key in self.log[since - self.first :])

    def wait(self, prefix: str, since: int, timeout: float) -> bool:
        """Whether something changed; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_newer(prefix, since):
            now = time.monotonic()
            if now >= deadline:
                return False
            self.changed.wait(max(0.0, min([deadline, *(lease.ends for lease in self.leases.values())]) - now))
            self.expire()
        return True

    def open(self, ttl: float) -> int:
        """A new lease."""
        number = next(self.numbers)
        self.leases[number] = Granted(ttl, time.monotonic() + ttl)
        return number

    def keep(self, number: int) -> bool:
        """Start a lease's time anew; False if it has ended."""
        if number not in self.leases:
            return False
        self.leases[number].ends = time.monotonic() + self.leases[number].ttl
        return True

    def revoke(self, number: int) -> None:
        """End a lease and remove its keys."""
        if self.leases.pop(number, None):
            for key in [key for key, stored in self.entries.items() if stored.lease == number]:
                self.write(key, None)

    def expire(self) -> None:
        """End every lease whose time is over; called before anything else happens."""
        now = time.monotonic()
        for number in [number for number, lease in self.leases.items() if lease.ends <= now]:
            self.revoke(number)

    def save(self) -> None:
        """Called before anything is answered."""


class DurableService(Service):
    """Keeps everything in a file as well."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        if file.exists():
            self.first, self.log, number, entries, leases = json.loads(file.read_text())
            self.numbers = itertools.count(number)
            self.entries = {
                key: Stored(**{**it, "value": base64.b64decode(it["value"])}) for key, it in entries.items()
            }
            self.leases = {int(number): Granted(**it) for number, it in leases.items()}

    def save(self) -> None:
        entries = {
            key: {**asdict(it), "value": base64.b64encode(it.value).decode()} for key, it in self.entries.items()
        }
        leases = {number: asdict(it) for number, it in self.leases.items()}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([self.first, self.log, next(self.numbers), entries, leases]))
        new.rename(self.file)


class _Handler(socketserver.StreamRequestHandler):
    """One connection: a line of JSON in, a line of JSON out."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            for line in self.rfile:
                self.wfile.write(json.dumps(self._answer(*json.loads(line))).encode() + b"\n")

    def _answer(self, method: str, *args: Any) -> Any:
        assert isinstance(self.server, _Server)
        service = self.server.service
        with service.changed:
            service.expire()
            answer = self._ask(service, method, *args)
            service.save()
            return answer

    def _ask(self, service: Service, method: str, *args: Any) -> Any:
        match method, args:
            case "read", (key,):
                return _packed({} if (found := service.read(key)) is None else {key: found})
            case "list", (prefix,):
                return service.revision, _packed(service.list(prefix))
            case "put", (key, value, expect, lease):
                won, there = service.put(key, base64.b64decode(value), expect, lease)
                return won, _packed({} if there is None else {key: there})
            case "create_all", (values,):
                return service.create_all({key: base64.b64decode(value) for key, value in values.items()})
            case "wait", (prefix, _, _):
                return (service.revision, _packed(service.list(prefix))) if service.wait(*args) else None
            case _:
                return getattr(service, method)(*args)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    service: Service


class MemoryServer:
    """The service in a process of its own, which ends with the others; what the suite asks of a ``server``."""

    def __init__(self, processes: Processes, make: Callable[[], Service] = Service) -> None:
        self._processes = processes
        self._make = make
        self._port = 0
        self._process: Worker
        self.restart()

    def restart(self) -> None:
        server = _Server(("127.0.0.1", self._port), _Handler)
        self._port = server.server_address[1]

        def work(link: Link) -> None:
            server.service = self._make()
            server.serve_forever()

        self._process = self._processes.fork(work)
        server.server_close()

    def get_endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    def terminate(self) -> None:
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()


def _packed(entries: Mapping[str, Stored]) -> dict[str, list[Any]]:
    return {key: [base64.b64encode(it.value).decode(), it.version, it.order] for key, it in entries.items()}


class Connections:
    """The connections of one client in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = False

    def new(self, family: int) -> socket.socket:
        """One that is not connected yet."""
        with self._lock:
            if self._closed:
                raise RendezvousConnectionError("This client is closed.")
            connection = socket.socket(family)
            self._busy.add(connection)
            return connection

    def take(self) -> socket.socket | None:
        """One that is not in use, if there is any."""
        with self._lock:
            if self._idle:
                self._busy.add(self._idle[-1])
                return self._idle.pop()
            return None

    def give_back(self, connection: socket.socket) -> None:
        """Keep one for later."""
        with self._lock:
            self._busy.discard(connection)
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: socket.socket) -> None:
        """Close one that has failed."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """End every call, and close what is not in use."""
        with self._lock:
            self._closed = True
            for connection in self._busy:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def all(self) -> list[socket.socket]:
        """Every one; in a child, where no lock can be trusted."""
        return [*self._idle, *self._busy]


class MemoryBackend(KeyValueBackend):
    """The backend of that service."""

    capabilities = frozenset({Capability.WATCH, Capability.LEASE})
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.MULTI_ENDPOINT: "there is one server",
        Capability.DURABLE: "it keeps everything in memory",
        Capability.TLS: "it is for tests on one machine",
        Capability.AUTH: "it is for tests on one machine",
    }
    creates_at_once = 16
    spare = 0.5
    """Seconds that the line gets for each piece of an answer, beside the call's own: a wait is answered when its own
    time is over."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        endpoints = parse_endpoints(endpoint, 0)
        if len(endpoints) > 1:
            raise RendezvousParameterError(f"There is one server; '{endpoint}' names {len(endpoints)}.")
        (self._endpoint,) = endpoints
        self._root = f"{escape(run_id)}/"
        self.connections = ProcessLocal(Connections, self.discard_inherited, Connections.close)
        self._closed: Future[None] = Future()

    @property
    def name(self) -> str:
        return "memory"

    @property
    def local_address(self) -> str:
        return source_address([self._endpoint], 1)

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return self._unpacked(self.call(timeout, "read", self._root + key)).get(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        revision, found = self.call(timeout, "list", self._root + prefix)
        return Snapshot(self._unpacked(found), revision)

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        names: dict[Any, str] = {ABSENT: "absent", ANY: "any"}
        wanted = names[expect] if isinstance(expect, Expect) else expect if type(expect) is int else None
        number = lease.number if isinstance(lease, MemoryLease) else None
        try:
            won, found = self.call(timeout, "put", self._root + key, base64.b64encode(value).decode(), wanted, number)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)
        return PutResult(PutOutcome.APPLIED if won else PutOutcome.CONFLICT, self._unpacked(found).get(key))

    def delete(self, prefix: str, *, timeout: float) -> None:
        self.call(timeout, "delete", self._root + prefix)

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        try:
            removed = self.call(timeout, "delete_version", self._root + key, token if type(token) is int else None)
        except ReplyLostError:
            return PutOutcome.UNKNOWN
        return PutOutcome.APPLIED if removed else PutOutcome.CONFLICT

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        sent = {self._root + key: base64.b64encode(value).decode() for key, value in values.items()}
        try:
            made = self.call(timeout, "create_all", sent)
        except ReplyLostError:
            return PutOutcome.UNKNOWN
        return PutOutcome.APPLIED if made else PutOutcome.CONFLICT

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        known = since.revision if isinstance(since.revision, int) else -1
        if known < 0:
            return self.read_all(prefix, timeout=timeout)
        answer = self.call(timeout, "wait", self._root + prefix, known, timeout)
        return since if answer is None else Snapshot(self._unpacked(answer[1]), answer[0])

    def open_lease(self, ttl: float, *, timeout: float) -> "MemoryLease":
        return MemoryLease(self, self.call(timeout, "open", ttl), ttl)

    def close(self) -> None:
        if self._closed.done():
            return
        self._closed.set_result(None)
        self.connections.close()

    def discard_inherited(self, inherited: "Connections") -> None:
        """Let go, in a child, of what is its parent's: close copies of its descriptors, no more."""
        for connection in inherited.all():
            connection.close()

    def call(self, timeout: float, *request: Any) -> Any:
        """Ask the service, on a connection of this call's own."""
        mine, deadline = self.connections.get(), time.monotonic() + timeout
        connection = self._connection(mine, deadline)
        try:
            connection.settimeout(max(0.0, deadline - time.monotonic()) + self.spare)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
            if not line:
                raise ConnectionError("the service hung up")
        except OSError as error:
            mine.drop(connection)
            raise ReplyLostError(f"{request[0]} got no answer: {error}") from error
        mine.give_back(connection)
        return json.loads(line)

    def _connection(self, mine: "Connections", deadline: float) -> socket.socket:
        if self._closed.done():
            raise RendezvousConnectionError("This client is closed.")
        if (idle := mine.take()) is not None:
            return idle
        connection = mine.new(self._family())
        try:
            address = self._resolve(deadline)
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            connection.connect(address)
        except OSError as error:
            mine.drop(connection)
            raise RendezvousConnectionError(f"{self.place} cannot be reached: {error}") from error
        return connection

    @property
    def place(self) -> str:
        """Where the service is."""
        return str(self._endpoint)

    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self._endpoint.host else socket.AF_INET

    def _resolve(self, deadline: float) -> tuple[Any, ...]:
        host, port = self._endpoint.host, self._endpoint.port
        answer = in_thread(lambda: socket.getaddrinfo(host, port, self._family(), socket.SOCK_STREAM), "resolve")
        waited: list[Future[Any]] = [answer, self._closed]
        wait(waited, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        if not answer.done():
            raise TimeoutError("its name was not resolved")
        return tuple(answer.result()[0][4])

    def _unpacked(self, found: Mapping[str, Iterable[Any]]) -> dict[str, Entry]:
        return {
            key.removeprefix(self._root): Entry(base64.b64decode(value), version, order)
            for key, (value, version, order) in found.items()
        }


class MemoryLease(Lease):
    """A lease of that service."""

    def __init__(self, backend: MemoryBackend, number: int, ttl: float) -> None:
        super().__init__(ttl)
        self.number = number
        self._backend = backend

    def keep_alive(self, timeout: float) -> bool:
        return bool(self._backend.call(timeout, "keep", self.number))

    def revoke(self, timeout: float) -> None:
        self._backend.call(timeout, "revoke", self.number)


class ReplyLostError(RendezvousConnectionError):
    """The request may have arrived."""


def _unsupported_but(given: Capability) -> Mapping[Capability, str]:
    return {capability: reason for capability, reason in MemoryBackend.unsupported.items() if capability is not given}


class DurableBackend(MemoryBackend):
    """The backend of a service that keeps everything."""

    capabilities = MemoryBackend.capabilities | {Capability.DURABLE}
    unsupported = _unsupported_but(Capability.DURABLE)


class PollingBackend(MemoryBackend):
    """The same service, as if it could not wake anyone, end a lease by itself or delete on a condition."""

    capabilities = frozenset()
    unsupported: ClassVar[Mapping[Capability, str]] = {
        **MemoryBackend.unsupported,
        Capability.WATCH: "no waiter is woken here",
        Capability.LEASE: "every lease lives for ever here",
    }
    wait = KeyValueBackend.wait
    open_lease = KeyValueBackend.open_lease  # type: ignore[assignment]
    delete_version = KeyValueBackend.delete_version
    create_all = KeyValueBackend.create_all
    creates_at_once = 1


class SeveralEndpoints(MemoryBackend):
    """The backend of a service that is there at several endpoints: one after the other is tried."""

    capabilities = MemoryBackend.capabilities | {Capability.MULTI_ENDPOINT}
    unsupported = _unsupported_but(Capability.MULTI_ENDPOINT)

    def __init__(self, endpoint: str, run_id: str) -> None:
        first, *_ = self._places = [str(one) for one in parse_endpoints(endpoint, 0)]
        super().__init__(first, run_id)
        self._backends = [MemoryBackend(place, run_id) for place in self._places]

    def call(self, timeout: float, *request: Any) -> Any:
        failures = []
        for backend in list(self._backends):
            try:
                return backend.call(timeout / len(self._backends), *request)
            except RendezvousConnectionError as error:
                self._backends.append(self._backends.pop(self._backends.index(backend)))
                if isinstance(error, ReplyLostError):
                    raise
                failures.append(str(error))
        raise RendezvousConnectionError("; ".join(failures))

    def close(self) -> None:
        super().close()
        for backend in self._backends:
            backend.close()


class OnMemory:
    """The fixtures of a test class whose backend is one of a memory service."""

    backend: ClassVar[type[MemoryBackend]] = MemoryBackend
    service: ClassVar[Callable[[], Service]] = Service

    @pytest.fixture
    def server(self, processes: Processes) -> MemoryServer:
        return MemoryServer(processes, type(self).service)

    @pytest.fixture
    def connect(self, server: MemoryServer) -> ConnectTo:
        return lambda run_id, endpoint="": self.backend(endpoint or server.get_endpoint(), run_id)
