"""Rendezvous for distributed jobs on any coordination service.

Names and meanings follow PyTorch's elastic rendezvous; what `__all__` lists is the public API. Those that a handler, an
error or a store has are `rdzv_core`'s, which a backend's author imports.
"""

from rdzv_core import (
    Drain,
    KeyValueBackend,
    RendezvousBackend,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousDeniedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameterError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    RendezvousUnsupportedError,
    Store,
    installed_backends,
    load_backend_plugin,
    registered_backends,
)

from . import config
from .current import World, current
from .engine.handler import DynamicRendezvousHandler, create_handler
from .engine.records import VERSION, NodeRecord
from .hooks import Event, EventKind, hookimpl, plugin_manager, register_hooks, unregister_hooks
from .registry import get_rendezvous_handler, rendezvous_handler_registry
from .settings import HANDLER_OPTIONS, RendezvousSettings, RendezvousTimeout
from .store import KeyValueStore, PrefixStore

__all__ = [
    "HANDLER_OPTIONS",
    "Drain",
    "DynamicRendezvousHandler",
    "Event",
    "EventKind",
    "KeyValueBackend",
    "KeyValueStore",
    "NodeRecord",
    "PrefixStore",
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
    "Store",
    "World",
    "config",
    "create_handler",
    "current",
    "get_rendezvous_handler",
    "hookimpl",
    "installed_backends",
    "load_backend_plugin",
    "plugin_manager",
    "register_hooks",
    "registered_backends",
    "rendezvous_handler_registry",
    "unregister_hooks",
]

__version__ = VERSION
