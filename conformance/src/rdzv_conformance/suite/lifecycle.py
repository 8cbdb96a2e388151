"""A client's life: construction, close, and what is left of it."""

import gc
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

import pytest
from rdzv_core.backend import ANY, Capability, KeyValueBackend, Snapshot
from rdzv_core.errors import RendezvousConnectionError

from ..deadlines import eventually
from ..processes import Link, Processes
from .base import CALL, KEY, ROOT, Clients, Conformance, Connect, refusal, requires
from .calls import at_once, held, holds_more_than

_HUNDREDS: Final = 100
_SHORT: Final = 0.01

Calls = dict[str, Callable[[KeyValueBackend], Any]]
_CALLS: Final[Calls] = {
    "read": lambda client: client.read(KEY, timeout=CALL),
    "read_all": lambda client: client.read_all(ROOT, timeout=CALL),
    "put": lambda client: client.put(KEY, b"x", expect=ANY, timeout=CALL),
    "delete": lambda client: client.delete(KEY, timeout=CALL),
    "wait": lambda client: client.wait(ROOT, Snapshot(), timeout=CALL),
    "get_state": lambda client: client.get_state(),
    "set_state": lambda client: client.set_state(b"x"),
}


class LifecycleConformance(Conformance):
    """From construction to close."""

    def test_construction_is_cheap(self, connect: Connect, run_id: str) -> None:
        """A client that was not used holds no thread and no file."""
        # What earlier tests have left must not go in the middle.
        gc.collect()
        before = held()
        clients = [connect(run_id) for _ in range(20)]
        during = held()
        for client in clients:
            client.close()
        assert during == before, "constructing a client took threads or files"

    @pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
    def test_close_may_be_called_twice(self, client: KeyValueBackend, used: bool) -> None:
        """Closing is final, and repeating it is fine."""
        if used:
            client.read(KEY, timeout=CALL)
        client.close()
        client.close()

    @pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
    @pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS.keys())
    def test_closed_client_refuses(
        self, client: KeyValueBackend, call: Callable[[KeyValueBackend], Any], used: bool
    ) -> None:
        """After `close` every call raises `RendezvousConnectionError`, also on a client that was never used."""
        if used:
            client.read(KEY, timeout=CALL)
        client.close()
        refusal(lambda: call(client), RendezvousConnectionError)

    @requires(Capability.LEASE)
    def test_closed_client_refuses_leases(self, clients: Clients) -> None:
        """After `close` no lease is opened, and none can be kept alive or revoked."""
        client = clients()
        lease = client.open_lease(1, timeout=CALL)
        client.close()
        refusal(lambda: client.open_lease(1, timeout=CALL), RendezvousConnectionError)
        refusal(lambda: lease.keep_alive(CALL), RendezvousConnectionError)
        refusal(lambda: lease.revoke(CALL), RendezvousConnectionError)

    def test_close_takes_nothing_from_others(self, clients: Clients) -> None:
        """Closing a client removes no key and disturbs no other client."""
        one, other = clients(), clients()
        one.put(KEY, b"x", expect=ANY, timeout=CALL)
        other.read(KEY, timeout=CALL)
        one.close()
        entry = other.read(KEY, timeout=CALL)
        assert entry is not None, "closing a client removed a key"

    def test_clients_leave_nothing_behind(self, connect: Connect, run_id: str, clients: Clients) -> None:
        """Hundreds of clients, one after the other and many at once, leak no thread, no socket, no file, no key."""

        def live(number: int) -> None:
            with closing(connect(run_id)) as client:
                name = f"suite/{number}"
                lease = client.open_lease(30, timeout=CALL) if Capability.LEASE in client.capabilities else None
                if lease is not None:
                    client.open_lease(1, timeout=CALL)  # one that its owner forgets
                client.put(name, b"x", expect=ANY, lease=lease, timeout=CALL)
                since = client.read_all(name, timeout=CALL)
                # So short a time may be over before the question is out: see `KeyValueBackend.wait`.
                with suppress(RendezvousConnectionError):
                    client.wait(name, since, timeout=_SHORT)
                if lease is None:
                    client.delete(name, timeout=CALL)
                else:
                    lease.revoke(CALL)

        for number in range(2):
            live(number)
        before = held()
        for number in range(_HUNDREDS):
            live(number)
        at_once("a call of a new client", live, range(_HUNDREDS), threads=20)
        eventually(lambda: not holds_more_than(before), "closed clients to let go", 5)
        left = clients().read_all(ROOT, timeout=CALL).entries.keys()
        assert not left, f"{len(left)} keys are left"

    @requires(Capability.DURABLE)
    def test_what_was_written_outlives_all_clients(self, clients: Clients, processes: Processes) -> None:
        """When the last process that used the service is gone, what it has written is there."""

        def write(link: Link) -> None:
            clients().put(KEY, b"x", expect=ANY, timeout=CALL)

        processes.fork(write).result()
        assert clients().read(KEY, timeout=CALL) is not None, "what was written went with its writer"
