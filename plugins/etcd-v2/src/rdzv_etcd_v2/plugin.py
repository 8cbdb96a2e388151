"""The entry point: how the core finds this backend. It imports nothing heavy until it must."""

from typing import TYPE_CHECKING, Any

from rdzv.hooks import BackendPlugin, hookimpl

from .options import OPTIONS

if TYPE_CHECKING:
    from rdzv.backend import RendezvousBackend
    from rdzv.parameters import RendezvousParameters

    from .backend import EtcdV2Backend

__all__ = ["create_backend", "rdzv_backend"]


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``etcd-v2``."""
    return BackendPlugin(
        name="etcd-v2",
        summary="etcd's v2 API, which etcd before 3.6 serves with --enable-v2",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=_backend_type,
        example_endpoint="host1:2379,host2:2379",
    )


def create_backend(params: "RendezvousParameters") -> "tuple[RendezvousBackend, Any]":
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is one or more ``host:port``, separated by commas (port 2379 if none is given).

    Raises:
        RendezvousParameterError: An endpoint, an option or a certificate cannot be used.
    """
    from rdzv.errors import RendezvousParameterError
    from rdzv.options import parse_options
    from rdzv.store import KeyValueStore

    from .access import Access

    options = parse_options(params.config, OPTIONS)
    name = "prefix" if options["etcd_prefix"] is None else "etcd_prefix"
    prefix = options[name]
    if not prefix.strip("/"):
        raise RendezvousParameterError(f"The {name} '{prefix}' is empty; all runs need one, such as team/jobs.")
    access = Access.by_options(params.endpoint, options, cert="ssl_cert", key="ssl_cert_key")
    backend = _backend_type()(access, params.run_id, prefix=prefix)
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[EtcdV2Backend]":
    from .backend import EtcdV2Backend

    return EtcdV2Backend
