"""The entry point: how rdzv finds this backend."""

from rdzv_core.backend import BackendPlugin
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters
from rdzv_transport import pop_tls_context

from .backend import ZooKeeperBackend
from .options import OPTIONS


def create_backend(params: RendezvousParameters) -> tuple[ZooKeeperBackend, None]:
    """See `BackendPlugin`; the endpoint is one or more ``host:port``, separated by commas (port 2181 if none)."""
    options = parse_options(params.config, OPTIONS)
    tls = pop_tls_context(options, ("tls", "false", "true"))
    backend = ZooKeeperBackend(parse_endpoints(params.endpoint, 2181), params.run_id, tls=tls, **options)
    return backend, None


BACKEND = BackendPlugin(
    "Apache ZooKeeper 3.6 or newer", OPTIONS, create_backend, ZooKeeperBackend,
    example_endpoint="host1:2181,host2:2181", contract=1,
)  # fmt: skip
