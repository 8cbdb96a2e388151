"""Where a service listens, and which address of this machine faces it.

No resolver is ever asked for this machine's own name: names that the machine gives itself are the first thing that is
wrong in containers. The address that peers get is the source address that the kernel would use towards the service.
"""

import ipaddress
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from .errors import RendezvousConnectionError, RendezvousParameterError
from .threads import in_thread

__all__ = ["Endpoint", "check_address", "hide_login", "parse_endpoints", "source_address"]

_LABEL: Final = re.compile(r"[\w-]{1,63}")
# What a system reads as an IPv4 address, in one of many ways, and asks no resolver for.
_NUMBERS: Final = re.compile(r"(0[xX][0-9A-Fa-f]*+|[0-9.])++")
_ZONE: Final = re.compile(r"[\w.-]+")
_EXAMPLE: Final = "Write host:port, such as node1:2379, 10.0.0.7:2379 or [fe80::1%eth0]:2379; commas separate several"
_FORMS_OF_OTHERS: Final = (
    (r"(?i)^unix:|^\.{0,2}/", "UNIX sockets are not supported; give the host and port where the service takes TCP"),
    (r"(?i)^srv:|^_.*\._(tcp|udp)\b", "DNS is not asked for SRV records; list the hosts and ports"),
    (";", "commas separate several, not semicolons"),
    ("://", "a scheme does not belong there; the backend's options choose TLS, and prefix a path (a chroot)"),
    ("/", "a path does not belong there; a path (a chroot) is the backend's option prefix"),
)
"""How other tools write endpoints, and what to give instead; the first that fits counts."""
_NO_PORT_NEEDED: Final = 9
"""The discard port: a datagram socket that is only connected sends nothing to it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place where a service listens.

    Attributes:
        host: A name, an IPv4 address or an IPv6 address (without brackets, perhaps with a scope).
        port: 1 to 65535; 0 where only the way to the host matters.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str, default_port: int, *, any_port: bool = False) -> tuple[Endpoint, ...]:
    """Read one endpoint, or several separated by commas.

    An item is ``host``, ``host:port``, ``[IPv6]`` or ``[IPv6]:port``. An item with two or more colons
    and no brackets is an IPv6 address without a port (``::1:2379`` is the address ``::1:2379``).

    Args:
        text: What the user wrote; blanks around an item are ignored.
        default_port: The port of the items that name none.
        any_port: Whether the port may be 0, for one that is free.

    Raises:
        RendezvousParameterError: An item is malformed; the message names it and what is wrong with it.
    """
    return tuple(_parse_endpoint(item.strip(), default_port, 0 if any_port else 1) for item in text.split(","))


def check_address(address: str) -> None:
    """Refuse what is neither a name nor an address of a machine.

    Args:
        address: What the user gave as ``local_addr``; an IPv6 address has no brackets.

    Raises:
        RendezvousParameterError: It is not; the message says what is wrong.
    """
    check = _check_ipv6 if ":" in address else _check_name
    try:
        if _is_of_many(check(address, address)):
            raise _malformed(address, "it stands for several addresses, and is none of one machine")
    except RendezvousParameterError as error:
        raise RendezvousParameterError(
            f"The local_addr '{address}' is no address of a machine: give what the other nodes reach this one by, "
            "without port or brackets (10.0.0.7, fd00::7, node1), or an interface or network of this machine."
        ) from error


def source_address(endpoints: Sequence[Endpoint], timeout: float) -> str:
    """This machine's address as a service at one of `endpoints` sees it.

    The kernel is asked which address it would send from; nothing is sent, so the service need not
    be up yet. For a service on this machine the answer is a loopback address.

    Args:
        endpoints: Tried in this order until this machine has a route to one.
        timeout: Seconds; resolving the endpoints' names may take this long together.

    Raises:
        RendezvousConnectionError: There is a route to none of them, or no name was resolved in time.
    """
    deadline = time.monotonic() + timeout
    failures = []
    for position, endpoint in enumerate(endpoints):
        # A fair share of the time for each, so that one dead resolver does not use up all of it.
        share = (deadline - time.monotonic()) / (len(endpoints) - position)
        try:
            return _address_towards(endpoint.host, max(0.0, share))
        except (OSError, UnicodeError) as error:
            failures.append(f"{endpoint} ({error})")
    raise RendezvousConnectionError(
        f"No route to {' nor to '.join(failures) or 'an endpoint: none was given'}. "
        "Check the endpoint, or give this node's address as local_addr."
    )


def _parse_endpoint(item: str, default_port: int, least_port: int) -> Endpoint:
    if not item:
        raise RendezvousParameterError(f"An endpoint is empty. {_EXAMPLE}.")
    if "@" in item:
        # The item is not shown: what stands before the @ may be a password.
        raise RendezvousParameterError(
            f"An endpoint has an @: user and password are options of the backend, not part of it. {_EXAMPLE}."
        )
    for form, reason in _FORMS_OF_OTHERS:
        if re.search(form, item):
            raise _malformed(item, reason)
    if item.startswith("["):
        host, bracket, rest = item[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _malformed(item, "the brackets around an IPv6 address are unbalanced or followed by more than a port")
        return Endpoint(_check_ipv6(host, item), _parse_port(rest[1:], least_port, item) if rest else default_port)
    if item.count(":") > 1:
        return Endpoint(_check_ipv6(item, item), default_port)
    host, colon, port = item.partition(":")
    return Endpoint(_check_name(host, item), _parse_port(port, least_port, item) if colon else default_port)


def _parse_port(text: str, least: int, item: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not least <= int(text) <= 65535:
        raise _malformed(item, f"the port '{text}' is not a number from {least} to 65535")
    return int(text)


def _check_ipv6(host: str, item: str) -> str:
    try:
        zone = ipaddress.IPv6Address(host).scope_id
    except ValueError as error:
        reason = f"'{host}' is not an IPv6 address, which a host in brackets or with several colons must be"
        raise _malformed(item, reason) from error
    if zone is not None and not _ZONE.fullmatch(zone):
        raise _malformed(item, f"'{zone}' is not a network interface")
    return host


def _check_name(host: str, item: str) -> str:
    if _NUMBERS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise _malformed(item, f"'{host}' is not an IPv4 address") from error
    elif len(host) > 254 or not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise _malformed(item, f"'{host}' is not a host name")
    return host


def _is_of_many(host: str) -> bool:
    """Whether a host is an address of no single machine: 0.0.0.0 or ::, at which one listens, or a multicast's."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_unspecified or address.is_multicast


def hide_login(endpoint: str) -> str:
    """The endpoint without what stands before an @, which may be a password."""
    return re.sub(r"(?<![^,/])[^,/]*@", "***@", endpoint)


def _malformed(item: str, reason: str) -> RendezvousParameterError:
    return RendezvousParameterError(f"The endpoint '{item}' is malformed: {reason}. {_EXAMPLE}.")


def _address_towards(host: str, timeout: float) -> str:
    failure = OSError("it has no address")
    for family, _, _, _, address in _resolve(host, timeout):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def _resolve(host: str, timeout: float) -> list[tuple[Any, ...]]:
    with suppress(socket.gaierror):
        return _lookup(host, socket.AI_NUMERICHOST)
    # It is a name. The system's resolver takes no timeout; a thread that outlives ours ends with the resolver's own.
    answer = in_thread(lambda: _lookup(host, 0), f"rdzv-resolve-{host}")
    try:
        return answer.result(timeout)
    except TimeoutError as error:
        raise TimeoutError(f"its name was not resolved within {timeout:.1f} s") from error


def _lookup(host: str, flags: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, _NO_PORT_NEEDED, type=socket.SOCK_DGRAM, flags=flags))
