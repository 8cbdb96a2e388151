"""The contract of rdzv: the handler, a backend, a round's store, the errors, and how a backend is found by its name.

Authors of backends and launchers import these names; users find those that they need in `rdzv`.
"""

from importlib.metadata import version

from .backend import (
    ABSENT,
    ANY,
    MAX_PAYLOAD,
    BackendPlugin,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    PutOutcome,
    PutResult,
    RendezvousBackend,
    Snapshot,
    Token,
)
from .endpoints import Endpoint, parse_endpoints, source_address
from .errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousParameterError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RendezvousUnsupportedError,
)
from .handler import Drain, RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from .keys import escape, unescape
from .options import Option, parse_options
from .parameters import RendezvousParameters
from .plugins import create_backend, installed_backends, load_backend_plugin, registered_backends
from .registry import RendezvousHandlerCreator, RendezvousHandlerRegistry
from .store import Store

__all__ = [
    "ABSENT",
    "ANY",
    "MAX_PAYLOAD",
    "BackendPlugin",
    "Capability",
    "Drain",
    "Endpoint",
    "Entry",
    "Expect",
    "KeyValueBackend",
    "Lease",
    "Option",
    "PutOutcome",
    "PutResult",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousDeniedError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameterError",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "RendezvousUnsupportedError",
    "Snapshot",
    "Store",
    "Token",
    "create_backend",
    "escape",
    "installed_backends",
    "load_backend_plugin",
    "parse_endpoints",
    "parse_options",
    "registered_backends",
    "source_address",
    "unescape",
]

__version__ = version("rdzv-core")
