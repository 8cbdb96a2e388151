"""The entry point: how the core finds this backend. It imports no client library until it must."""

from typing import TYPE_CHECKING, Any

from rdzv.backend import RendezvousBackend
from rdzv.endpoints import parse_endpoints
from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .options import OPTIONS

if TYPE_CHECKING:
    from rdzv.parameters import RendezvousParameters

    from .backend import ZooKeeperBackend

__all__ = ["create_backend", "rdzv_backend"]

_PORT = 2181
_PASSED_ON = ("prefix", "server_name", "user", "password", "sasl", "sasl_service", "acl", "request_timeout")


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``zookeeper``."""
    return BackendPlugin(
        name="zookeeper",
        summary="Apache ZooKeeper 3.6 or newer",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=_backend_type,
        example_endpoint="host1:2181,host2:2181",
    )


def create_backend(params: "RendezvousParameters") -> tuple[RendezvousBackend, Any]:
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is one or more ``host:port``, separated by commas (port 2181 if none is given).

    Raises:
        RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
    """
    from rdzv.store import KeyValueStore
    from rdzv_transport import tls_context

    options = parse_options(params.config, OPTIONS)
    files = {name: (name, options[name]) for name in ("ca_cert", "cert", "key", "server_name")}
    protocol = {True: "true", False: "false"}.get(options["tls"])
    backend = _backend_type()(
        parse_endpoints(params.endpoint, _PORT),
        params.run_id,
        tls=tls_context(("tls", "false", "true"), protocol=protocol, **files),
        **{name: options[name] for name in _PASSED_ON},
    )
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[ZooKeeperBackend]":
    from .backend import ZooKeeperBackend

    return ZooKeeperBackend
