"""The entry point: how rdzv finds this backend."""

from rdzv_core.backend import BackendPlugin
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters

from .access import Access
from .backend import EtcdV2Backend
from .options import OPTIONS


def create_backend(params: RendezvousParameters) -> tuple[EtcdV2Backend, None]:
    """See `BackendPlugin`; the endpoint is one or more ``host:port``, separated by commas (port 2379 if none)."""
    options = parse_options(params.config, OPTIONS)
    name = "prefix" if options["etcd_prefix"] is None else "etcd_prefix"
    prefix = options[name]
    if not prefix.strip("/"):
        raise RendezvousParameterError(f"The {name} '{prefix}' is empty; all runs need one, such as team/jobs.")
    access = Access.by_options(params.endpoint, options, cert="ssl_cert", key="ssl_cert_key")
    backend = EtcdV2Backend(access, params.run_id, prefix=prefix)
    return backend, None


BACKEND = BackendPlugin(
    "etcd's v2 API, which etcd before 3.6 serves with --enable-v2", OPTIONS, create_backend, EtcdV2Backend,
    example_endpoint="host1:2379,host2:2379", contract=1,
)  # fmt: skip
