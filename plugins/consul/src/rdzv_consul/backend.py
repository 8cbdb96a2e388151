"""rdzv's contract on Consul."""

import ipaddress
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from rdzv_core import ABSENT, ANY, Capability, Expect, Lease, PutOutcome, PutResult, Token
from rdzv_core.endpoints import Endpoint, parse_endpoints, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_transport import Client, NetworkBackend, Present

from .datacenter import one_datacenter
from .kv import Keys
from .refusals import Refusals

_ELECTION: Final = 0.2
"""Seconds until Consul is asked for its leader again, while it has none."""


class ConsulBackend(NetworkBackend[Keys]):
    """One run's keys in Consul, under ``<prefix>/<run id>/``.

    A token is Consul's ModifyIndex, an entry's order its CreateIndex.
    """

    name = "consul"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.LEASE}
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.LEASE: "its sessions end 10 s late or more, or with the agent they were opened at; heartbeats do not"
    }

    # Operations in a transaction: 64, or 128 since 1.17.
    creates_at_once = 64

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        prefix: str = "rdzv",
        token: str | None = None,
        namespace: str | None = None,
        datacenter: str | None = None,
        tls: Present[ssl.SSLContext] | None = None,
        server_name: str | None = None,
        request_timeout: float = 3.0,
    ) -> None:
        """Does not touch the network.

        Args:
            endpoints: Agents of one Consul; the first is tried first, one that fails last.
            run_id: Which run.
            prefix: The path under which all runs live.
            token: The ACL token; None: there is none. One that was taken from a file follows it.
            namespace: Of the keys (Consul Enterprise); None: the token's own.
            datacenter: Whose keys; None: those of the agent that answers first.
            tls: How to verify the agents, and with which certificate of our own; None: no TLS.
            server_name: The name in the agents' certificates, if it is not the endpoint's.
            request_timeout: Seconds that one of several agents has to answer before the next is tried.

        Raises:
            RendezvousParameterError: These cannot be used.
        """
        if not endpoints:
            raise RendezvousParameterError("Consul needs an endpoint, such as localhost:8500, and none was given.")
        if not run_id:
            raise RendezvousParameterError("The run id must be a non-empty string.")
        path = prefix.strip("/")
        if not path:
            raise RendezvousParameterError(f"The prefix '{prefix}' is empty; all runs need one, such as team/jobs.")
        if wrong := [part for part in path.split("/") if part in ("", ".", "..")]:
            part = f"the part '{wrong[0]}'" if wrong[0] else "an empty part"
            raise RendezvousParameterError(
                f"The prefix '{prefix}' has {part}, which Consul takes out of a path. Write it like team/jobs."
            )
        headers = {"Content-Type": "application/json"} | ({} if namespace is None else _header("namespace", namespace))
        login = None if token is None else Present.secret(token).then(partial(_header, "token"))
        root = f"{path}/{escape(run_id)}/"
        # One that is asked for is asked for in every call, and an agent that has no path to it says so.
        cluster = one_datacenter() if datacenter is None else None

        def link() -> Keys:
            refusals = Refusals(f"{path}/", token is not None, datacenter)
            client = Client(
                "Consul",
                endpoints,
                refusals.check,
                headers=headers,
                login=login,
                tls=tls,
                server_name=server_name,
                request_timeout=request_timeout,
                cluster=cluster,
            )
            return Keys(client, refusals, root, namespace, datacenter)

        super().__init__(link, root)
        self._address = ""

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`. An agent of this very machine sees only a loopback address.

        Raises:
            RendezvousConnectionError: There is no route to any agent, or to Consul's leader.
        """
        link = self.link
        if not self._address:
            address = super().local_address
            is_loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
            self._address = _address_towards_leader(link, self.register_timeout) if is_loopback else address
        return self._address

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        """See `KeyValueBackend.put`. One that is lost costs a second call."""
        if lease is not None:
            raise RendezvousParameterError(f"Consul has no leases of ours; '{key}' cannot hang on {lease!r}.")
        if not isinstance(expect, Expect) and not _is_index(expect):
            return PutResult(PutOutcome.CONFLICT, self.read(key, timeout=timeout))
        index = None if expect is ANY else 0 if expect is ABSENT else expect
        return self.link.put(key, value, timeout, index)

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        return self.link.delete_version(key, token, timeout) if _is_index(token) else PutOutcome.CONFLICT

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        return self.link.create_all(values, timeout)


def _header(option: str, text: str) -> dict[str, str]:
    if not re.fullmatch(r"[!-~]+", text):
        raise RendezvousParameterError(f"The option '{option}' is empty, or has blanks or non-ASCII in it.")
    return {f"X-Consul-{option.capitalize()}": text}


def _address_towards_leader(keys: Keys, timeout: float) -> str:
    """The address of this machine in the network by which the agents, and so the nodes, reach each other."""
    deadline, answered = time.monotonic() + timeout, False
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            leader = keys.leader(remaining)
        except RendezvousConnectionError:
            if not answered:
                raise
            # The rest of the time was too short for a call; what is wrong is that there is no leader.
            break
        if leader:
            return source_address(parse_endpoints(leader, 0), max(0.001, deadline - time.monotonic()))
        answered = True
        time.sleep(_ELECTION)
    raise RendezvousConnectionError(
        f"Consul had no leader for {timeout:.1f} s. Wait for one, or give this node's address as local_addr."
    )


def _is_index(token: Token) -> bool:
    """Whether this may be a token that a backend has returned. To Consul, 0 would mean that the key must not exist."""
    return type(token) is int and 0 < token < 2**63
