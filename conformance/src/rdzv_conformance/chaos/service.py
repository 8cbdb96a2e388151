"""The service that the agents meet at: one that we start and may fault, or one that runs already."""

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rdzv import RendezvousError, RendezvousParameterError, load_backend_plugin
from rdzv_core import Capability, parse_endpoints

from ..servers import CLUSTERS, TcpStoreServer

if TYPE_CHECKING:
    from ..suite.server import Server


_STARTED: Final[Mapping[str, Callable[[], Any]]] = {**CLUSTERS, "c10d": TcpStoreServer}
"""What is started for a backend, by its name."""

_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"c10d": {"is_host": "false"}}
"""Options that agents need for what is started: the store is the server's, also while an agent's proxy is down."""
_OF_FILES: Final[Mapping[str, Mapping[str, str]]] = {"sqlite": {"create": "true"}}
"""Options for a file: the first client makes it, which is the inspector that looks before the agents start."""


@dataclass(frozen=True)
class Service:
    """A service.

    Attributes:
        endpoint: Where it is, as the backend wants it.
        members: Its servers, which may be faulted; none if it is not ours.
        durable: It keeps what was written when its servers are killed.
        targets: Where TCP connections to it go, in the order of `endpoint`; none if they do not.
        options: The backend's options that it needs.
    """

    endpoint: str
    members: "tuple[Server, ...]"
    durable: bool
    targets: tuple[tuple[str, int], ...]
    options: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def find_service(backend: str, endpoint: str | None, server: str | None) -> Iterator[Service]:
    """Have a service for a backend, for as long as the context lasts.

    Args:
        backend: The name of the backend.
        endpoint: Where one runs already; None: one is started.
        server: ``module:Class`` of what to start: a context manager with the methods of `Server`, or with
            `members` that have them. None: what we know, or a new file.

    Raises:
        RendezvousParameterError: There is no such backend, or its service cannot be started here.
        ServiceMissingError: The program of the service is not on this machine.
    """
    kind: Any = load_backend_plugin(backend).backend_type
    durable = Capability.DURABLE in getattr(kind, "capabilities", ())
    make: Any = _load(server) if server else _STARTED.get(backend)
    if endpoint is not None:
        yield Service(endpoint, (), durable, _targets(endpoint), _OF_FILES.get(backend, {}))
    elif make is not None:
        with _make(make, server) as running:
            there = running.get_endpoint()
            members, options = tuple(getattr(running, "members", [running])), _OPTIONS.get(backend, {})
            yield Service(there, members, durable, _targets(there), options)
    elif backend == "sqlite":
        with tempfile.TemporaryDirectory(prefix="rdzv-chaos-") as folder:
            yield Service(str(Path(folder, "rdzv.db")), (), durable, (), _OF_FILES["sqlite"])
    else:
        raise RendezvousParameterError(
            f"Nothing is known that could be started for the backend '{backend}'. Give --endpoint, if its service "
            "runs already, or --server module:Class, a class like those of rdzv_conformance.servers."
        )


def _load(server: str) -> Any:
    module, _, name = server.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RendezvousParameterError(
            f"--server {server} is not module:Class of something to import: {error}."
        ) from error


def _make(make: Any, server: str | None) -> Any:
    try:
        made = make()
    except TypeError as error:
        raise RendezvousParameterError(f"--server {server} cannot be called without arguments: {error}.") from error
    if missing := [name for name in ("__enter__", "__exit__", "get_endpoint") if not hasattr(made, name)]:
        raise RendezvousParameterError(
            f"--server {server} makes {made!r}, which has no {', no '.join(missing)}: name a class like those of "
            "rdzv_conformance.servers."
        )
    return made


def _targets(endpoint: str) -> tuple[tuple[str, int], ...]:
    """The addresses in an endpoint that names a port for each; none in any other."""
    with suppress(RendezvousError):
        found = tuple((one.host, one.port) for one in parse_endpoints(endpoint, 0))
        if all(port for _, port in found):
            return found
    return ()
