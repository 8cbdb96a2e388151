"""PyTorch's first rendezvous on etcd, by its names, in maintenance: underneath it is ``etcd-v2``.

This is also the entry point of the backend ``etcd``.
"""

import warnings
from typing import TYPE_CHECKING, Any, Final

from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import Option, parse_options

if TYPE_CHECKING:
    from rdzv.backend import RendezvousBackend
    from rdzv.parameters import RendezvousParameters

    from .backend import EtcdV2Backend

__all__ = ["create_backend", "rdzv_backend"]

OPTIONS: Final = (
    Option("etcd_prefix", "text", "/torchelastic/p2p", "The directory in which all runs of this etcd live."),
    Option(
        "protocol",
        "text",
        None,
        "http or https; unset: https if any of cacert, cert and key is given, else http.",
        choices=("http", "https"),
    ),
    Option("cacert", "path", None, "PEM file of who must have signed the servers' certificates; unset: the system's."),
    Option("cert", "path", None, "PEM file of this client's certificate, and its key if that is not apart."),
    Option("key", "path", None, "PEM file of the key of this client's certificate."),
    Option("user", "text", None, "Who logs in, where etcd demands it; PyTorch had no such option."),
    Option("password", "text", None, "The password of user.", secret=True),
)
"""Every option of this backend, by PyTorch's names."""


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``etcd``."""
    return BackendPlugin(
        name="etcd",
        summary="etcd-v2 by its legacy name and options; in maintenance",
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
    from rdzv.store import KeyValueStore

    from .access import Access

    warnings.warn(
        "The backend 'etcd' is PyTorch's legacy name; use 'etcd-v2', or 'etcd-v3' of the package rdzv-etcd-v3.",
        DeprecationWarning,
        stacklevel=3,
    )
    options = parse_options(params.config, OPTIONS)
    access = Access.by_options(params.endpoint, options, cert="cert", key="key", ca_cert="cacert")
    backend = _backend_type()(access, params.run_id, prefix=options["etcd_prefix"])
    return backend, KeyValueStore(backend)


def _backend_type() -> "type[EtcdV2Backend]":
    from .backend import EtcdBackend

    return EtcdBackend
