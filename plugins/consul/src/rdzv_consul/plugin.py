"""The entry point: how rdzv finds this backend."""

from rdzv_core.backend import BackendPlugin
from rdzv_core.endpoints import parse_endpoints
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters
from rdzv_transport import pop_tls_context

from .backend import ConsulBackend
from .options import OPTIONS


def create_backend(params: RendezvousParameters) -> tuple[ConsulBackend, None]:
    """See `BackendPlugin`; the endpoint is agents, ``host:port``, with commas (port 8500 if none, with TLS 8501)."""
    options = parse_options(params.config, OPTIONS)
    tls = pop_tls_context(options)
    endpoints = parse_endpoints(params.endpoint, 8501 if tls else 8500)
    backend = ConsulBackend(endpoints, params.run_id, tls=tls, **options)
    return backend, None


BACKEND = BackendPlugin(
    "Consul 1.8 or newer, over its HTTP API", OPTIONS, create_backend, ConsulBackend,
    default_endpoint="127.0.0.1", contract=1,
)  # fmt: skip
