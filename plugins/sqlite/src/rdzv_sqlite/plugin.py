"""The entry point: how the core finds this backend."""

from rdzv.backend import BackendPlugin
from rdzv.options import parse_options
from rdzv.parameters import RendezvousParameters

from .backend import SqliteBackend
from .options import OPTIONS
from .paths import check_endpoint, default_path, describe


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
    default_endpoint=default_path(), describe_endpoint=describe, as_client=as_client,
)  # fmt: skip
