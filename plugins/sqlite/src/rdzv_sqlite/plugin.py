"""The entry point: how rdzv finds this backend."""

from rdzv_core.backend import BackendPlugin
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters

from .backend import SqliteBackend
from .options import OPTIONS
from .paths import check_endpoint, describe


def create_backend(params: RendezvousParameters) -> tuple[SqliteBackend, None]:
    """See `BackendPlugin`; the endpoint is the path of the database, or empty for one of this user's own."""
    check_endpoint(params.endpoint)
    backend = SqliteBackend(params.endpoint, params.run_id, **parse_options(params.config, OPTIONS))
    return backend, None


def as_client(params: RendezvousParameters) -> RendezvousParameters:
    """See `BackendPlugin`: a mistyped path is no empty run."""
    return params.with_defaults(create=False)


BACKEND = BackendPlugin(
    "a SQLite file, for the processes of one machine; no server", OPTIONS, create_backend, SqliteBackend,
    default_endpoint="", describe_endpoint=describe, as_client=as_client, contract=1,
)  # fmt: skip
