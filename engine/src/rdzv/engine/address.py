"""Which address of this machine the others reach it by, where the user says so."""

import errno
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rdzv_core.endpoints import check_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv_core.threads import start_thread

from .aside import node_logger

logger = node_logger(__name__)

_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENODEV, errno.EACCES)
"""What a socket says that is to be bound to an address which this machine has not, and then connected to it: one that
stands for all machines of a network can be bound, but needs a permission."""


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of this machine, and the name of its interface."""

    interface: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def interface_addresses() -> list[InterfaceAddress]:
    """All addresses of this machine, the one that reaches furthest first: a link's come after the world's, loopbacks'
    last, then IPv4 before IPv6, then what an interface has first.

    Those of IPv6 that count on one link are left out: each machine names it in its own way.

    Raises:
        OSError: The system does not tell.
    """
    # Most nodes need none of them, and it loads ctypes.
    import ifaddr

    every = ((adapter.name, each) for adapter in ifaddr.get_adapters() for each in adapter.ips)
    found = [
        InterfaceAddress(name, ipaddress.ip_address(each.ip[0] if isinstance(each.ip, tuple) else each.ip))
        for name, each in every
    ]
    usable = (each for each in found if not (each.address.version == 6 and each.address.is_link_local))
    return sorted(usable, key=lambda each: (each.address.is_loopback, each.address.is_link_local, each.address.version))


def own_address(given: str, behind_nat: bool = False) -> str:
    """The address that is meant by a ``local_addr``: of an interface, or in a network, the one that reaches furthest.

    A name is an interface's before it is a host's. A host's is not looked up: what the others get is what counts, and
    a machine may not know its own.

    Args:
        given: The name of an interface of this machine, a network (``10.98.0.0/16``), an address or a host's name.
        behind_nat: Whether an address may be none of this machine's.

    Raises:
        RendezvousParameterError: It is none of these, or this machine has no such address.
    """
    if "/" in given:
        network = _network(given)
        return _first_address(f"in the network '{given}'", lambda each: each.address in network)
    if given in _interfaces():
        return _first_address(f"on its interface '{given}'", lambda each: each.interface == given)
    check_address(given)
    if not behind_nat and _is_address(given) and _is_foreign(given):
        raise RendezvousParameterError(
            f"The local_addr '{given}' is no address of this machine{_listed()}. If the others reach it by that one "
            "all the same, through NAT or a port of its host, give the option behind_nat=yes."
        )
    return given


def announced(address: str | None) -> str | None:
    """An address, if any, as the others get it. Where it is a name that this machine's resolver does not know, such as
    that of an interface which other machines have, a warning says so, without a wait for it."""
    if address and not _is_address(address):
        with suppress(RendezvousConnectionError):
            start_thread(_look_up, address, name=f"rdzv-look-up-{address}")
    return address


def _look_up(name: str) -> None:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        message = (
            "the others are to find this node by the name '%s', which is no interface of this machine, and which its "
            "resolver does not know (%s). If theirs do not either, give another local_addr%s"
        )
        logger.warning(message, name, error, _listed("this machine"))


def _network(given: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(given, strict=False)
    except ValueError as error:
        raise RendezvousParameterError(
            f"The local_addr '{given}' is no network: {error}. Give one such as 10.98.0.0/16."
        ) from error


def _interfaces() -> list[str]:
    """The names of this machine's interfaces; none where it keeps them from its processes, which may have a host's."""
    with suppress(OSError):
        return [name for _, name in socket.if_nameindex()]
    return []


def _first_address(where: str, fits: Callable[[InterfaceAddress], bool]) -> str:
    try:
        found = [each for each in interface_addresses() if fits(each)]
    except OSError as error:
        raise RendezvousParameterError(
            f"The addresses of this machine cannot be listed ({error}): give the address itself as local_addr."
        ) from error
    if not found:
        raise RendezvousParameterError(f"This machine has no address {where} that others could use{_listed()}.")
    return str(found[0].address)


def _listed(who: str = "it") -> str:
    """What this machine has instead, for messages."""
    with suppress(OSError):
        return f"; {who} has {', '.join(map(str, interface_addresses())) or 'none'}"
    return ""


def _is_address(given: str) -> bool:
    try:
        ipaddress.ip_address(given)
    except ValueError:
        return False
    return True


def _is_foreign(address: str) -> bool:
    """Whether an address is none of this machine's; asks the kernel, which also knows whole networks of its own, such
    as 127.0.0.0/8."""
    try:
        # With the number of the interface that a link's address names.
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, *_, place = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(place)
            probe.connect(probe.getsockname())
    except socket.gaierror:
        # There is no such interface.
        return True
    except OSError as error:
        return error.errno in _NOT_HERE
    return False
