"""The entry point: how the core finds this backend. It imports nothing heavy until it must."""

from typing import TYPE_CHECKING, Any

from rdzv.backend import RendezvousBackend
from rdzv.endpoints import parse_endpoints
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .options import OPTIONS

if TYPE_CHECKING:
    from rdzv.parameters import RendezvousParameters

    from .backend import EtcdV3Backend

__all__ = ["create_backend", "rdzv_backend"]

_PORT = 2379


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``etcd-v3``."""
    return BackendPlugin(
        name="etcd-v3",
        summary="etcd 3.4 or newer, over its JSON gateway",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=_backend_type,
        example_endpoint="host1:2379,host2:2379",
    )


def create_backend(params: "RendezvousParameters") -> tuple[RendezvousBackend, Any]:
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is one or more ``host:port``, separated by commas (port 2379 if none is given).

    Raises:
        RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
    """
    from rdzv.store import KeyValueStore
    from rdzv_transport import tls_context

    options = parse_options(params.config, OPTIONS)
    files = {name: (name, options[name]) for name in ("ca_cert", "cert", "key", "server_name")}
    backend = _backend_type()(
        parse_endpoints(params.endpoint, _PORT),
        params.run_id,
        prefix=options["prefix"],
        tls=tls_context(protocol=options["protocol"], **files),
        server_name=options["server_name"],
        user=options["user"],
        password=options["password"],
        request_timeout=options["request_timeout"],
    )
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[EtcdV3Backend]":
    from .backend import EtcdV3Backend

    return EtcdV3Backend
