"""PyTorch's first rendezvous on etcd, by its names, in maintenance: underneath it is ``etcd-v2``.

This is also the entry point of the backend ``etcd``.
"""

import warnings
from typing import Final

from rdzv_core.backend import BackendPlugin
from rdzv_core.options import Option, parse_options
from rdzv_core.parameters import RendezvousParameters
from rdzv_transport import same_cluster_option, tls_options

from .access import Access
from .backend import EtcdBackend

OPTIONS: Final = (
    Option("etcd_prefix", "text", "/torchelastic/p2p", "The directory in which all runs of this etcd live."),
    *tls_options("servers'", ca_cert="cacert", server_name=None),
    Option("user", "text", None, "The user that logs in, where etcd demands it; PyTorch had no such option."),
    Option("password", "text", None, "The password of user.", secret=True),
    same_cluster_option(),
)
"""Every option of this backend, by PyTorch's names."""


def create_backend(params: RendezvousParameters) -> tuple[EtcdBackend, None]:
    """See `BackendPlugin`; the endpoint is one or more ``host:port``, separated by commas (port 2379 if none)."""
    warnings.warn(
        "The backend 'etcd' is PyTorch's legacy name; use 'etcd-v2', or 'etcd-v3' of the package rdzv-etcd-v3.",
        DeprecationWarning,
        stacklevel=3,
    )
    options = parse_options(params.config, OPTIONS)
    access = Access.by_options(params.endpoint, options, cert="cert", key="key", ca_cert="cacert")
    backend = EtcdBackend(access, params.run_id, prefix=options["etcd_prefix"])
    return backend, None


BACKEND = BackendPlugin(
    "etcd-v2 by its legacy name and options; in maintenance", OPTIONS, create_backend, EtcdBackend,
    example_endpoint="host1:2379,host2:2379", contract=1,
)  # fmt: skip
