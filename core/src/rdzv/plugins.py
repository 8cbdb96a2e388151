"""Finding plugins and calling their hooks.

A backend is an entry point of the group ``rdzv`` that is named like the backend and leads to a `BackendPlugin`. It is
loaded when that backend is asked for: choosing one imports nothing of another. The plugins of hooks are loaded
before the first hook is called, all of them.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

import pluggy

from .backend import RendezvousBackend
from .credentials import with_secrets
from .endpoints import hide_login
from .errors import RendezvousError, RendezvousParameterError
from .hooks import PROJECT, Event, Hooks
from .near import near_name
from .options import Option, read_options, secret_names
from .parameters import ARGUMENTS, RendezvousParameters
from .settings import CORE_OPTIONS
from .text import printable

if TYPE_CHECKING:
    from .engine.records import NodeRecord

__all__ = [
    "BackendPlugin",
    "assign_ranks",
    "check_health",
    "create_backend",
    "emit",
    "installed_backends",
    "installed_hooks",
    "load_backend_plugin",
    "plugin_manager",
    "register_hooks",
    "registered_backends",
    "unregister_hooks",
]

logger = logging.getLogger(__name__)

_OURS: Final = frozenset({"c10d", "consul", "etcd-v2", "etcd-v3", "sqlite", "zookeeper"})
"""The backends that a package ``rdzv-<name>`` brings, so that an error can say what to install."""


@dataclass(frozen=True)
class BackendPlugin:
    """What a backend's entry point leads to; the entry point's name is the backend's.

    Attributes:
        summary: One line for ``rdzv backends``.
        options: Every option that this backend understands.
        create_backend: Makes the backend, and the store if it brings one, for parameters. Raises
            `RendezvousParameterError` for those it cannot use, and does not touch the network.
        backend_type: The backend's class, for its declared capabilities.
        default_endpoint: The endpoint when the user gives none; None where one is needed.
        example_endpoint: What one looks like, for the message to a user who gave none.
        describe_endpoint: Says for people what an endpoint means, in a few words and without secrets.
        check_shared: Raises `RendezvousParameterError` for parameters that give each process a service of its own, so
            that no other process finds it. The subcommands of ``rdzv`` about a run ask it: they start programs that use
            the same service, or look at one that others use.
    """

    summary: str
    options: tuple[Option, ...]
    create_backend: Callable[[RendezvousParameters], tuple[RendezvousBackend, Any]]
    backend_type: type[RendezvousBackend]
    default_endpoint: str | None = None
    example_endpoint: str = "host:port"
    describe_endpoint: Callable[[str], str] = hide_login
    check_shared: Callable[[RendezvousParameters], None] = lambda params: None


registered_backends: Final[dict[str, BackendPlugin]] = {}
"""The backends that this process knows by name: the loaded ones, and what is put in by hand, which comes first."""


def installed_backends() -> dict[str, Distribution]:
    """The name of every installed backend and the package that brings it, without importing any.

    If two packages bring the same name, the one that Python finds first counts.
    """
    found: dict[str, Distribution] = {}
    for entry in entry_points(group="rdzv"):
        if entry.dist is not None:
            found.setdefault(entry.name, entry.dist)
    return dict(sorted(found.items()))


def load_backend_plugin(name: str) -> BackendPlugin:
    """The description of one backend. Imports the plugin of that name, and no other.

    Raises:
        RendezvousParameterError: There is no such backend; the message says what to install, or the
            nearest right name.
        RendezvousError: The plugin is broken; the message names its package and the cause.
    """
    if name in registered_backends:
        return registered_backends[name]
    entry = next(iter(entry_points(group="rdzv", name=name)), None)
    if entry is None:
        raise RendezvousParameterError(_explain_unknown(name))
    with _naming_package(entry):
        plugin = entry.load()
        if not isinstance(plugin, BackendPlugin):
            raise TypeError(f"it leads to {plugin!r}, which is no BackendPlugin")
    return registered_backends.setdefault(name, plugin)


def create_backend(params: RendezvousParameters) -> tuple[RendezvousBackend, Any]:
    """Make the backend and the store that `params` describe, without contacting the service.

    Raises:
        RendezvousParameterError: The backend is unknown, needs an endpoint, or one of the options is
            known neither to the core nor to it.
        RendezvousError: The plugin is broken, or a library that it needs is missing.
    """
    plugin = load_backend_plugin(params.backend)
    if not isinstance(params.run_id, str) or not params.run_id:
        raise RendezvousParameterError(f"The run id must be a non-empty string, not {params.run_id!r}.")
    # Files are read once: the plugin finds the secrets themselves.
    params = with_secrets(params, secret_names(plugin.options))
    known = (*CORE_OPTIONS, *plugin.options)
    read_options(params.config, known, owner=f"The backend '{params.backend}'", besides=ARGUMENTS)
    if not params.endpoint:
        if plugin.default_endpoint is None:
            raise RendezvousParameterError(
                f"The backend '{params.backend}' needs an endpoint, such as {plugin.example_endpoint}, and none was "
                "given."
            )
        params.endpoint = plugin.default_endpoint
    try:
        return plugin.create_backend(params)
    except ImportError as error:
        raise RendezvousError(
            f"The backend '{params.backend}' misses what it needs ({error}): reinstall its package."
        ) from error


def _explain_unknown(name: str) -> str:
    installed = installed_backends()
    if name in _OURS:
        advice = f"Install it with `pip install rdzv-{name}`."
    elif near := near_name(name, _OURS.union(installed)):
        advice = f"Did you mean '{near}'" + ("?" if near in installed else f" (`pip install rdzv-{near}`)?")
    else:
        advice = "Register it with `register`, or install the package that brings it."
    return (
        f"The rendezvous backend '{name}' is not registered: no installed package offers it. {advice} "
        f"Installed: {', '.join(installed) or 'none'}."
    )


@contextmanager
def _naming_package(entry: EntryPoint) -> Iterator[None]:
    """Turn whatever goes wrong inside into an error that names the package of `entry`."""
    try:
        yield
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise RendezvousError(
            f"The plugin '{entry.name}' of the package '{package}' is broken: {type(error).__name__}: {error}. "
            f"Reinstall or uninstall {package}."
        ) from error


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    return manager


_manager = _new_manager()
_loading = threading.RLock()


def plugin_manager() -> pluggy.PluginManager:
    """The pluggy manager, with every installed ``rdzv.hooks`` plugin and everything registered by hand.

    Raises:
        RendezvousError: An installed plugin is broken; the message names its package and the cause.
    """
    with _loading:
        _load_hooks(_manager)
        return _manager


@cache
def _load_hooks(manager: pluggy.PluginManager) -> None:
    del manager
    for _, found in installed_hooks():
        if isinstance(found, RendezvousError):
            raise found


def installed_hooks() -> Iterator[tuple[EntryPoint, tuple[str, ...] | RendezvousError]]:
    """Every installed ``rdzv.hooks`` plugin with the hooks that it implements, or what is wrong with it.

    Each is loaded, whatever is wrong with another, and none is called.
    """
    for entry in entry_points(group="rdzv.hooks"):
        try:
            with _naming_package(entry):
                found: tuple[str, ...] | RendezvousError = _register(entry.load())
        except RendezvousError as error:
            found = error
        yield entry, found


def register_hooks(plugin: Any) -> None:
    """Add a plugin by hand: a module, class or object with functions marked ``hookimpl``.

    Adding it twice is the same as adding it once.

    Raises:
        RendezvousParameterError: It implements no hook, one that does not exist, or one wrongly.
    """
    # Without the lock: a module that registers itself while it is imported holds its import lock.
    try:
        _register(plugin)
    except (pluggy.PluginValidationError, LookupError) as error:
        raise RendezvousParameterError(f"{plugin!r} is no plugin: {error}.") from error


def unregister_hooks(plugin: Any) -> None:
    """Take out a plugin that `register_hooks` added; taking out one that is not there is fine."""
    if _manager.is_registered(plugin):
        _manager.unregister(plugin)


def _register(plugin: Any) -> tuple[str, ...]:
    """Register a plugin, unless it is there already, and name the hooks that it implements."""
    # First in a manager of its own, so that a broken one leaves no trace in ours.
    alone = _new_manager()
    alone.register(plugin)
    alone.check_pending()
    callers = alone.get_hookcallers(plugin)
    if not callers:
        raise LookupError("it has no function that is marked with rdzv.hooks.hookimpl")
    for each in (each for caller in callers for each in caller.get_hookimpls()):
        if each.wrapper or each.hookwrapper:
            # Plugins are called one by one, so that one cannot break another; nothing is there to wrap.
            raise LookupError(f"{each.function.__name__} is a wrapper; only plain hooks are called")
    if not _manager.is_registered(plugin):
        _manager.register(plugin)
    return tuple(sorted(caller.name for caller in callers))


def _implementations(hook: str, **arguments: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each plugin's name and its part of a hook, ready to be called; the last that was registered comes first."""
    for each in reversed(getattr(plugin_manager().hook, hook).get_hookimpls()):
        # pluggy names an object by a number.
        name = type(each.plugin).__qualname__ if each.plugin_name.isdigit() else each.plugin_name
        yield name, partial(each.function, *(arguments[wanted] for wanted in each.argnames))


def emit(event: Event) -> None:
    """Emit an event to every plugin. A plugin that raises is logged and keeps it from no other."""
    for name, take in _implementations("rdzv_event", event=event):
        try:
            take()
        except Exception:
            logger.exception("The plugin '%s' failed to take the event %s.", name, event)


def assign_ranks(arrived: "Sequence[NodeRecord]", previous: Sequence[str]) -> Sequence[str] | None:
    """Ask the plugins for the order of a new round.

    A plugin that raises, or whose answer is not every id of `arrived` once, is logged and passed over.

    Returns:
        The first plugin's answer that is not None; None if all leave it to the default.
    """
    for name, ask in _implementations("rdzv_assign_ranks", arrived=arrived, previous=previous):
        try:
            order: Sequence[str] | None = ask()
            if order is not None and sorted(order) != sorted(node.id for node in arrived):
                raise ValueError(f"{list(order)} is not every arrived node once")
        except Exception:
            logger.exception("The plugin '%s' failed to assign ranks.", name)
        else:
            if order is not None:
                return order
    return None


def check_health(run_id: str, labels: Mapping[str, str]) -> None:
    """Let every plugin look at this node before it joins.

    Raises:
        RendezvousError: A check failed; the message names the plugin and the cause. A `RendezvousError`
            that a plugin raises goes through as it is.
    """
    for name, check in _implementations("rdzv_health_check", run_id=run_id, labels=labels):
        try:
            check()
        except RendezvousError:
            raise
        except Exception as error:
            raise RendezvousError(
                f"This node may not join the run '{printable(run_id)}': the health check of the plugin "
                f"'{name}' failed with {type(error).__name__}: {error}."
            ) from error
