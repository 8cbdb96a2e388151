"""The entry point: how the core finds this backend. It imports torch only when a backend is made."""

from typing import TYPE_CHECKING, Any

from rdzv.endpoints import parse_endpoints
from rdzv.errors import RendezvousParameterError
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .backend import C10dRendezvousBackend, root_of
from .options import OPTIONS
from .place import FilePlace, TcpPlace
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
    """Make the backend and the store of a run; touches neither network nor disk.

    Args:
        params: The endpoint is ``host:port`` (port 29400 if none is given), or a path if ``store_type`` is ``file``.

    Raises:
        RendezvousParameterError: The endpoint or an option cannot be used.
    """
    from rdzv.store import KeyValueStore

    stores()
    options = parse_options(params.config, OPTIONS)
    make = _file_place if options["store_type"] == "file" else _tcp_place
    place = make(params.endpoint, root_of(options["prefix"], params.run_id), options)
    backend = C10dRendezvousBackend(place, params.run_id, prefix=options["prefix"])
    return backend, KeyValueStore(backend)


def _tcp_place(endpoint: str, owner: str, options: dict[str, Any]) -> TcpPlace:
    endpoints = parse_endpoints(endpoint or _ENDPOINT, _PORT)
    if len(endpoints) > 1:
        raise RendezvousParameterError(f"A TCPStore has one endpoint; '{endpoint}' names {len(endpoints)}.")
    return TcpPlace(
        endpoints[0],
        owner,
        is_host=options["is_host"],
        read_timeout=options["read_timeout"],
        linger=options["linger"],
    )


def _file_place(endpoint: str, owner: str, options: dict[str, Any]) -> FilePlace:
    if endpoint in ("", _ENDPOINT):
        raise RendezvousParameterError(
            "With store_type=file the endpoint is the path of a file, such as /shared/job-7.store; none was given."
        )
    return FilePlace(endpoint)
