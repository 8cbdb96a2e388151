"""The entry point: how rdzv finds this backend. It imports torch only when a backend is made."""

from typing import Any

from rdzv.store import KeyValueStore
from rdzv_core.backend import BackendPlugin
from rdzv_core.endpoints import Endpoint, parse_endpoints
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import parse_options
from rdzv_core.parameters import RendezvousParameters

from .backend import C10dRendezvousBackend, root_of
from .locator import FileLocator, StoreLocator, TcpLocator, TemporaryFileLocator
from .options import OPTIONS
from .round_store import RoundStore, is_possible
from .store import stores

_PORT = 29400
_ENDPOINT = f"localhost:{_PORT}"


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, KeyValueStore]:
    """Make the backend and the store of a run; does not touch the network.

    Args:
        params: The endpoint is ``host:port`` (port 29400 if none is given), or a path if ``store_type`` is ``file``.
            A handler that is a whole run of one node may leave the port (0) or the path (none given) to its process.

    Raises:
        RendezvousParameterError: The endpoint or an option cannot be used.
    """
    stores()
    options = parse_options(params.config, OPTIONS)
    locator = _locator(params, options)
    backend = C10dRendezvousBackend(locator, params.run_id, prefix=options["prefix"])
    is_direct = isinstance(locator, TcpLocator) and is_possible()
    return backend, RoundStore(backend) if is_direct else KeyValueStore(backend)


def check_shared(params: RendezvousParameters) -> None:
    """Refuse a port or a file that each process has for itself.

    Raises:
        RendezvousParameterError: No other process can know the endpoint, or an option cannot be used.
    """
    if parse_options(params.config, OPTIONS)["store_type"] == "file":
        if _is_left_out(params.endpoint):
            raise RendezvousParameterError(
                "With store_type=file and no endpoint each process has a file of its own, which no other process can "
                "know: that is for torchrun, or one handler, as a run of one node. Give the path of a file that all "
                "see, such as /shared/job-7.store."
            )
    elif _endpoint(params).port == 0:
        raise RendezvousParameterError(
            f"The endpoint '{params.endpoint}' leaves the port to each process, so no other process can know it: that "
            "is for torchrun, or one handler, as a run of one node which serves its own store. Give a port that all "
            f"know, such as {_PORT}."
        )


def as_client(params: RendezvousParameters) -> RendezvousParameters:
    """See `BackendPlugin`: where a node may host the store, a mistyped port would be a new one."""
    return params.with_defaults(is_host=False)


def _locator(params: RendezvousParameters, options: dict[str, Any]) -> StoreLocator:
    is_file = options["store_type"] == "file"
    if params.max_nodes > 1 or (options["is_host"] is False and not is_file):
        check_shared(params)
    if is_file:
        return TemporaryFileLocator() if _is_left_out(params.endpoint) else FileLocator(params.endpoint)
    owner = root_of(options["prefix"], params.run_id)
    return TcpLocator(_endpoint(params), owner, options["is_host"], options["read_timeout"], options["linger"])


def _endpoint(params: RendezvousParameters) -> Endpoint:
    endpoints = parse_endpoints(params.endpoint or _ENDPOINT, _PORT, any_port=True)
    if len(endpoints) > 1:
        raise RendezvousParameterError(f"A TCPStore has one endpoint; '{params.endpoint}' names {len(endpoints)}.")
    return endpoints[0]


def _is_left_out(path: str) -> bool:
    """Whether the endpoint, the path of a file, is left to the process: rdzv fills in the default for none."""
    return path in ("", _ENDPOINT)


BACKEND = BackendPlugin(
    "PyTorch's TCPStore, served by one of the nodes, or FileStore", OPTIONS, create_backend, C10dRendezvousBackend,
    default_endpoint=_ENDPOINT, check_shared=check_shared, as_client=as_client, contract=1,
)  # fmt: skip
