"""The entry point: how the core finds this backend. It imports torch only when a backend is made."""

from typing import TYPE_CHECKING, Any

from rdzv.endpoints import parse_endpoints
from rdzv.errors import RendezvousParameterError
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .backend import C10dRendezvousBackend, root_of
from .options import OPTIONS
from .place import FilePlace, TcpPlace, TemporaryFilePlace
from .store import stores

if TYPE_CHECKING:
    from rdzv.parameters import RendezvousParameters
    from rdzv.store import KeyValueStore

__all__ = ["create_backend", "rdzv_backend"]

_PORT = 29400
_ENDPOINT = f"localhost:{_PORT}"


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``c10d``."""
    return BackendPlugin(
        name="c10d",
        summary="PyTorch's TCPStore, served by one of the nodes, or FileStore",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=lambda: C10dRendezvousBackend,
        default_endpoint=_ENDPOINT,
    )


def create_backend(params: "RendezvousParameters") -> "tuple[C10dRendezvousBackend, KeyValueStore]":
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is ``host:port`` (port 29400 if none is given), or a path if ``store_type`` is ``file``.
            A run of one node may leave the port (0) or the path (none given) to this machine.

    Raises:
        RendezvousParameterError: The endpoint or an option cannot be used.
    """
    from rdzv.store import KeyValueStore

    stores()
    options = parse_options(params.config, OPTIONS)
    make = _file_place if options["store_type"] == "file" else _tcp_place
    place = make(params, root_of(options["prefix"], params.run_id), options)
    backend = C10dRendezvousBackend(place, params.run_id, prefix=options["prefix"])
    return backend, KeyValueStore(backend)


def _tcp_place(params: "RendezvousParameters", owner: str, options: dict[str, Any]) -> TcpPlace:
    endpoints = parse_endpoints(params.endpoint or _ENDPOINT, _PORT, any_port=True)
    if len(endpoints) > 1:
        raise RendezvousParameterError(f"A TCPStore has one endpoint; '{params.endpoint}' names {len(endpoints)}.")
    if endpoints[0].port == 0 and (params.max_nodes > 1 or options["is_host"] is False):
        raise RendezvousParameterError(
            f"The endpoint '{params.endpoint}' leaves the port to this process, so no other node can know it: that is "
            "for runs of one node which serves its own store. Give a port that all nodes know, such as 29400."
        )
    return TcpPlace(
        endpoints[0],
        owner,
        is_host=options["is_host"],
        read_timeout=options["read_timeout"],
        linger=options["linger"],
    )


def _file_place(params: "RendezvousParameters", owner: str, options: dict[str, Any]) -> FilePlace:
    if params.endpoint not in ("", _ENDPOINT):
        return FilePlace(params.endpoint)
    if params.max_nodes > 1:
        raise RendezvousParameterError(
            "With store_type=file the endpoint is the path of a file, such as /shared/job-7.store; none was given, and "
            "each node would have a file of its own."
        )
    return TemporaryFilePlace()
