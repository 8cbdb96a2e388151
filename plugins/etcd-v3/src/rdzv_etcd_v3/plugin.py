"""The entry point: how rdzv finds this backend."""

from rdzv_core.backend import BackendPlugin
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters
from rdzv_transport import pop_tls_context

from .backend import EtcdV3Backend
from .options import OPTIONS


def create_backend(params: RendezvousParameters) -> tuple[EtcdV3Backend, None]:
    """See `BackendPlugin`; the endpoint is one or more ``host:port``, separated by commas (port 2379 if none)."""
    options = parse_options(params.config, OPTIONS)
    tls = pop_tls_context(options)
    backend = EtcdV3Backend(parse_endpoints(params.endpoint, 2379), params.run_id, tls=tls, **options)
    return backend, None


BACKEND = BackendPlugin(
    "etcd 3.4 or newer, over its JSON gateway", OPTIONS, create_backend, EtcdV3Backend,
    example_endpoint="host1:2379,host2:2379", contract=1,
)  # fmt: skip
