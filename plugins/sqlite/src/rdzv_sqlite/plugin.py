"""The entry point: how the core finds this backend."""

from typing import TYPE_CHECKING

from rdzv.hooks import BackendPlugin, hookimpl
from rdzv.options import parse_options

from .backend import SqliteBackend
from .options import OPTIONS
from .paths import check_endpoint, default_path, describe

if TYPE_CHECKING:
    from rdzv.parameters import RendezvousParameters
    from rdzv.store import KeyValueStore

__all__ = ["create_backend", "rdzv_backend"]


@hookimpl
def rdzv_backend() -> BackendPlugin:
    """Describe the backend ``sqlite``."""
    return BackendPlugin(
        name="sqlite",
        summary="a SQLite file, for the processes of one machine; no server",
        options=OPTIONS,
        create_backend=create_backend,
        backend_type=lambda: SqliteBackend,
        default_endpoint=default_path(),
        describe_endpoint=describe,
    )


def create_backend(params: "RendezvousParameters") -> "tuple[SqliteBackend, KeyValueStore]":
    """Make the backend and the store of a run; touches no file.

    Args:
        params: The endpoint is the path of the database; empty: one of this user's own.

    Raises:
        RendezvousParameterError: An option has an impossible value, or the endpoint looks like a server's address.
    """
    from rdzv.store import KeyValueStore

    check_endpoint(params.endpoint)
    options = parse_options(params.config, OPTIONS)
    backend = SqliteBackend(params.endpoint, params.run_id, prefix=options["prefix"], create=options["create"])
    return backend, KeyValueStore(backend)
