"""The entry point: how the core finds this backend. It imports nothing heavy until it must."""

from typing import TYPE_CHECKING, Any

from rdzv.backend import RendezvousBackend
from rdzv.endpoints import parse_endpoints
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .options import OPTIONS

if TYPE_CHECKING:
    from rdzv.parameters import RendezvousParameters

    from .backend import ConsulBackend

__all__ = ["create_backend", "rdzv_backend"]

_PORT = 8500
_TLS_PORT = 8501


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``consul``."""
    return BackendPlugin(
        name="consul",
        summary="Consul 1.8 or newer, over its HTTP API",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=_backend_type,
        default_endpoint="127.0.0.1",
    )


def create_backend(params: "RendezvousParameters") -> tuple[RendezvousBackend, Any]:
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is one or more agents, ``host:port``, separated by commas; without a port, 8500
            is meant, or 8501 with TLS.

    Raises:
        RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
    """
    from rdzv.store import KeyValueStore
    from rdzv_transport import tls_context

    options = parse_options(params.config, OPTIONS)
    tls = tls_context(
        protocol=options["protocol"],
        ca_cert=("ca_cert", options["ca_cert"]),
        cert=("cert", options["cert"]),
        key=("key", options["key"]),
        server_name=("server_name", options["server_name"]),
    )
    backend = _backend_type()(
        parse_endpoints(params.endpoint, _TLS_PORT if tls else _PORT),
        params.run_id,
        prefix=options["prefix"],
        token=options["token"],
        namespace=options["namespace"],
        datacenter=options["datacenter"],
        tls=tls,
        server_name=options["server_name"],
        request_timeout=options["request_timeout"],
    )
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[ConsulBackend]":
    from .backend import ConsulBackend

    return ConsulBackend
