"""Which process serves the TCPStore: one that can listen at the endpoint.

No name of this machine is asked for or compared. An address that the endpoint stands for can be bound on one
machine only, and its port by one process there: that process is the host, and all others are its clients.
"""

import errno
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Final

from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import keep_in_children

from .store import FAILURES, copy_socket, stores

logger = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_OWN: Final = 0.1
"""Seconds until our own connections, which we have just closed, are no longer counted."""
_UNNOTICED: Final = 2.0
"""Seconds that a process may take to end without a word."""
_POLL_INTERVAL: Final = 0.05
"""Seconds between two looks whether the last client is gone."""


class Host:
    """A TCPStore that this process serves.

    Attributes:
        address: Where this process itself reaches it, whatever the others must say: host and port.
        users: How many in this process need it.
    """

    def __init__(self, listener: socket.socket, mark: Callable[[Any], None]) -> None:
        """Serve on `listener`, which listens already; `mark` writes into the store what its clients must find."""
        address, port = listener.getsockname()[:2]
        if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
            address = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
        self.address: tuple[str, int] = (address, port)
        self.users = 0
        self._listener = listener.detach()
        self._store = keep_in_children(
            stores().TCPStore(
                address,
                port,
                is_master=True,
                timeout=timedelta(seconds=10),
                wait_for_workers=False,
                master_listen_fd=self._listener,
            )
        )
        mark(self._store)

    def release(self, linger: float) -> None:
        """Need it no more: with its last user it ends, at once if no other process is connected.

        Args:
            linger: Seconds after which it ends although others are.
        """
        with _lock:
            self.users -= 1
            if self.users:
                return
        if linger <= 0 or self._await_idle(_OWN, 0.002):
            self._end()
        elif not threading.main_thread().is_alive():
            # The interpreter ends, as after a signal: the others may learn why, and no more.
            self._await_idle(min(linger, _UNNOTICED), _POLL_INTERVAL)
            self._end()
        else:
            # Not a daemon: if this process ended now, the others could not deregister.
            lingering = threading.Thread(target=self._linger, args=(linger,), name="rdzv-c10d-linger")
            try:
                lingering.start()
            except RuntimeError:
                # There is no room for a thread: the caller waits itself.
                self._linger(linger)

    def forget(self) -> None:
        """Give up what a fork has copied: the parent serves, not we."""
        # While we had them open, no client would see the parent's end, and no process could take over.
        for fd in [*self._accepted(), self._listener]:
            with suppress(OSError):
                os.close(fd)

    def _linger(self, seconds: float) -> None:
        try:
            if not self._await_idle(min(seconds, _UNNOTICED), _POLL_INTERVAL):
                rest = max(0.0, seconds - _UNNOTICED)
                logger.warning(
                    "this process serves the store of nodes that are not done yet, and waits for them for up to %.0f s "
                    "more (option 'linger'); another Ctrl-C ends it at once",
                    rest,
                )
                if not self._await_idle(rest, _POLL_INTERVAL):
                    logger.warning("the store that this process serves ends now, although others are still connected")
        finally:
            self._end()

    def _end(self) -> None:
        with _lock:
            if self.users:
                return
            for key in [key for key, host in _hosts.items() if host is self]:
                del _hosts[key]
            # Ends the server.
            self._store = None

    def _await_idle(self, seconds: float, poll_interval: float) -> bool:
        """Wait until it is not needed; False if it is still, and only by other processes."""
        deadline = time.monotonic() + seconds
        # One connection is always there: torch makes it for the host itself.
        while not self.users and sum(1 for _ in self._accepted()) > 1:
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_interval)
        return True

    def _accepted(self) -> Iterator[int]:
        """The descriptors of our clients' connections; torch tells nothing of them."""
        for name in os.listdir("/dev/fd"):
            copy = copy_socket(int(name))
            if copy is not None:
                with copy, suppress(OSError):
                    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == self.address[1]:
                        copy.getpeername()  # the listener has none
                        yield int(name)


class SharedNameError(RendezvousConnectionError):
    """The name of the endpoint is this machine's and another's."""


_Address = tuple[int, Any]
"""The family, and what `bind` takes."""

known_addresses: Final[dict[str, list[str]]] = {}
"""What each host's name stood for when this process looked it up, or when it was connected to the host, last."""

_hosts: Final[dict[Hashable, Host]] = {}
_lock = threading.Lock()


def try_to_host(endpoint: Endpoint, name: Hashable, must: bool, mark: Callable[[Any], None]) -> Host | None:
    """Serve a store at an endpoint, if no process does and this machine has its address. The caller releases it.

    Args:
        endpoint: Where; with port 0, at any that is free.
        name: The same for all in this process who need the same store.
        must: This process is the host, even if the endpoint's address is virtual: not one of this machine.
        mark: Writes into the new store what its clients must find.

    Raises:
        SharedNameError: Another machine could serve as well.
        RendezvousConnectionError: We must, and cannot.
    """
    host = None
    try:
        # Before the lock: the resolver may take long. (A host that is there needs no address.)
        addresses = [] if name in _hosts else _look_up(endpoint)
        with _lock:
            host = _hosts.get(name)
            if host is None and (listener := _listen(endpoint, addresses, must)) is not None:
                host = _hosts[name] = Host(listener, mark)
                there = Endpoint(endpoint.host, host.address[1])
                logger.info("this process (%d) serves the store at %s", os.getpid(), there)
            if host is not None:
                host.users += 1
    except SharedNameError:
        raise
    except FAILURES as error:
        if must:
            raise RendezvousConnectionError(f"This process cannot serve the store at {endpoint}: {error}.") from error
        logger.debug("this process cannot serve the store at %s: %s", endpoint, error)
    return host


def _look_up(endpoint: Endpoint) -> list[_Address]:
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    addresses: list[_Address] = [(family, address) for family, _, _, _, address in found]
    known_addresses[endpoint.host] = [str(address[0]) for _, address in addresses]
    return addresses


def _listen(endpoint: Endpoint, addresses: list[_Address], must: bool) -> socket.socket | None:
    """A socket that listens at the endpoint; None if its address is another machine's.

    Raises:
        SharedNameError: One of its addresses is, and another one is this machine's.
        OSError: It is taken, or we may not take it.
    """
    with ExitStack() as unused:
        own, others = [], []
        for family, address in addresses:
            try:
                own.append(unused.enter_context(_bind(family, address)))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                others.append((family, address))
        if not must and own:
            _check_others(endpoint.host, {one.family for one in own}, others)
        if own and _is_exact(endpoint.host):
            own[0].listen(_BACKLOG)
            # Not to be closed with the others.
            return own[0].dup()
    # The others may see the name as another address of this machine. (And Debian's machines
    # see their own name as one that no other machine can reach.)
    return _listen_everywhere(endpoint.port) if own or must else None


def _check_others(name: str, families: set[int], others: list[_Address]) -> None:
    """Refuse a name that is not this machine's alone: the others that can bind one of its addresses would serve, too.

    An address is not counted if it is a loopback address, or of a kind that this machine does not have at all.
    """
    for family, address in others:
        is_loopback = ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
        if not is_loopback and (family in families or _has_route(family, address)):
            raise SharedNameError(
                f"It has one of the addresses of '{name}', but {address[0]} is another machine's: there would be two "
                "hosts. Give the name or the address of the node that is to serve the store, or is_host=true to that "
                "node alone."
            )


def _has_route(family: int, address: Any) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return True
    return False


def _bind(family: int, address: Any) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _is_exact(host: str) -> bool:
    """Whether it means the same address on every machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for host in _hosts.values():
        host.forget()
    _hosts.clear()


os.register_at_fork(after_in_child=_after_fork)
