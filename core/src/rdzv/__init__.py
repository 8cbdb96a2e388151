"""Rendezvous for distributed jobs on any coordination service.

Names and meanings follow PyTorch's elastic rendezvous; what `__all__` lists is the public API.
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
from .current import World, current
from .endpoints import Endpoint, parse_endpoints, source_address
from .engine.handler import DynamicRendezvousHandler, create_handler
from .engine.records import NodeRecord
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
from .hooks import Event, EventKind, hookimpl, plugin_manager, register_hooks, unregister_hooks
from .keys import escape, unescape
from .options import Option, parse_options
from .parameters import RendezvousParameters
from .plugins import installed_backends, load_backend_plugin, registered_backends
from .registry import (
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)
from .settings import CORE_OPTIONS, RendezvousSettings, RendezvousTimeout
from .store import KeyValueStore, PrefixStore, Store

__all__ = [
    "ABSENT",
    "ANY",
    "CORE_OPTIONS",
    "MAX_PAYLOAD",
    "BackendPlugin",
    "Capability",
    "Drain",
    "DynamicRendezvousHandler",
    "Endpoint",
    "Entry",
    "Event",
    "EventKind",
    "Expect",
    "KeyValueBackend",
    "KeyValueStore",
    "Lease",
    "NodeRecord",
    "Option",
    "PrefixStore",
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
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "RendezvousUnsupportedError",
    "Snapshot",
    "Store",
    "Token",
    "World",
    "create_handler",
    "current",
    "escape",
    "get_rendezvous_handler",
    "hookimpl",
    "installed_backends",
    "load_backend_plugin",
    "parse_endpoints",
    "parse_options",
    "plugin_manager",
    "register_hooks",
    "registered_backends",
    "rendezvous_handler_registry",
    "source_address",
    "unescape",
    "unregister_hooks",
]

__version__ = version("rdzv")
