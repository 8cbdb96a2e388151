"""Finding plugins and calling their hooks.

A backend is an entry point of the group ``rdzv``, named like the backend and loaded only when
that backend is asked for: choosing one imports nothing of another. Plugins for the other hooks
are entry points of the group ``rdzv.hooks``; all of them are loaded, once, before the first such
hook is called. Either kind can also be registered by hand.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

import pluggy

from .backend import RendezvousBackend
from .credentials import with_secrets
from .errors import RendezvousError, RendezvousParameterError
from .hooks import PROJECT, BackendPlugin, Event, Hooks
from .near import near_name
from .options import read_options, secret_names
from .parameters import ARGUMENTS, RendezvousParameters
from .settings import CORE_OPTIONS
from .text import printable

if TYPE_CHECKING:
    from .engine.records import NodeRecord

__all__ = [
    "assign_ranks",
    "check_health",
    "create_backend",
    "emit",
    "installed_backends",
    "installed_hooks",
    "load_backend_plugin",
    "plugin_manager",
    "register_hooks",
    "unregister_hooks",
]

logger = logging.getLogger(__name__)

_BACKENDS: Final = "rdzv"
_HOOKS: Final = "rdzv.hooks"

_PACKAGES: Final = {name: f"rdzv-{name}" for name in ("c10d", "consul", "etcd-v2", "etcd-v3", "sqlite", "zookeeper")}
"""Which package brings which backend, so that an error can say what to install."""


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    return manager


_manager = _new_manager()
_loading = threading.RLock()


def installed_backends() -> dict[str, Distribution]:
    """The name of every installed backend and the package that brings it, without importing any.

    If two packages bring the same name, the one that Python finds first counts.
    """
    found: dict[str, Distribution] = {}
    for entry in entry_points(group=_BACKENDS):
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
    with _loading:
        if (known := _find_described(_manager, name)) is not None:
            return known
        entry = next(iter(entry_points(group=_BACKENDS, name=name)), None)
        if entry is None:
            raise RendezvousParameterError(_explain_unknown(name))
        with _wrap_plugin_errors(entry):
            plugin = entry.load()
            described = _find_described(_check(plugin), name)
            if described is None:
                raise LookupError(f"its rdzv_backend describes no backend of the name '{name}'")
            _register(plugin)
        return described


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
    read_options(params.config, known, owner=f"The backend '{plugin.name}'", besides=ARGUMENTS)
    if not params.endpoint:
        if plugin.default_endpoint is None:
            raise RendezvousParameterError(
                f"The backend '{plugin.name}' needs an endpoint, such as {plugin.example_endpoint}, and none was given."
            )
        params.endpoint = plugin.default_endpoint
    try:
        return plugin.create_backend(params)
    except ImportError as error:
        raise RendezvousError(
            f"The backend '{plugin.name}' misses what it needs ({error}): reinstall its package."
        ) from error


def plugin_manager() -> pluggy.PluginManager:
    """The pluggy manager, with every installed ``rdzv.hooks`` plugin and everything registered by hand.

    Raises:
        RendezvousError: An installed plugin is broken; the message names its package and the cause.
    """
    with _loading:
        _load_hooks(_manager)
        return _manager


def installed_hooks() -> Iterator[tuple[EntryPoint, tuple[str, ...] | RendezvousError]]:
    """Every installed ``rdzv.hooks`` plugin with the hooks that it implements, or what is wrong with it.

    Each is loaded, whatever is wrong with another, and none is called.
    """
    for entry in entry_points(group=_HOOKS):
        try:
            with _wrap_plugin_errors(entry):
                plugin = entry.load()
                callers = _check(plugin).get_hookcallers(plugin) or ()
        except RendezvousError as error:
            yield entry, error
        else:
            yield entry, tuple(sorted(caller.name for caller in callers))


def register_hooks(plugin: Any) -> None:
    """Add a plugin by hand: a module, class or object with functions marked ``hookimpl``.

    Adding it twice is the same as adding it once.

    Raises:
        RendezvousParameterError: It implements no hook, one that does not exist, or one wrongly.
    """
    # Without the lock: a module that registers itself while it is imported holds its import lock.
    try:
        _check(plugin)
    except (pluggy.PluginValidationError, LookupError) as error:
        raise RendezvousParameterError(f"{plugin!r} is no plugin: {error}.") from error
    _register(plugin)


def unregister_hooks(plugin: Any) -> None:
    """Take out a plugin that `register_hooks` added; taking out one that is not there is fine."""
    if _manager.is_registered(plugin):
        _manager.unregister(plugin)


def emit(event: Event) -> None:
    """Emit an event to every plugin. A plugin that raises is logged and keeps it from no other."""
    for implementation in _implementations("rdzv_event"):
        try:
            _call(implementation, event=event)
        except Exception:
            logger.exception("The plugin '%s' failed to take the event %s.", _name_of(implementation), event)


def assign_ranks(arrived: "Sequence[NodeRecord]", previous: Sequence[str]) -> Sequence[str] | None:
    """Ask the plugins for the order of a new round.

    A plugin that raises, or whose answer is not every id of `arrived` once, is logged and passed over.

    Returns:
        The first plugin's answer that is not None; None if all leave it to the default.
    """
    for implementation in _implementations("rdzv_assign_ranks"):
        try:
            order: Sequence[str] | None = _call(implementation, arrived=arrived, previous=previous)
            if order is None:
                continue
            if sorted(order) != sorted(node.id for node in arrived):
                raise ValueError(f"{list(order)} is not every arrived node once")
        except Exception:
            logger.exception("The plugin '%s' failed to assign ranks.", _name_of(implementation))
        else:
            return order
    return None


def check_health(run_id: str, labels: Mapping[str, str]) -> None:
    """Let every plugin look at this node before it joins.

    Raises:
        RendezvousError: A check failed; the message names the plugin and the cause. A `RendezvousError`
            that a plugin raises goes through as it is.
    """
    for implementation in _implementations("rdzv_health_check"):
        try:
            _call(implementation, run_id=run_id, labels=labels)
        except RendezvousError:
            raise
        except Exception as error:
            raise RendezvousError(
                f"This node may not join the run '{printable(run_id)}': the health check of the plugin "
                f"'{_name_of(implementation)}' failed with {type(error).__name__}: {error}."
            ) from error


@cache
def _load_hooks(manager: pluggy.PluginManager) -> None:
    for entry in entry_points(group=_HOOKS):
        with _wrap_plugin_errors(entry):
            plugin = entry.load()
            _check(plugin)
            _register(plugin)


def _register(plugin: Any) -> None:
    if not _manager.is_registered(plugin):
        _manager.register(plugin)


def _check(plugin: Any) -> pluggy.PluginManager:
    """Register `plugin` in a manager of its own, so that a broken one leaves no trace in ours."""
    alone = _new_manager()
    alone.register(plugin)
    alone.check_pending()
    callers = alone.get_hookcallers(plugin)
    if not callers:
        raise LookupError("it has no function that is marked with rdzv.hooks.hookimpl")
    for implementation in (implementation for caller in callers for implementation in caller.get_hookimpls()):
        if implementation.wrapper or implementation.hookwrapper:
            # Plugins are called one by one, so that one cannot break another; nothing is there to wrap.
            raise LookupError(f"{implementation.function.__name__} is a wrapper; only plain hooks are called")
    return alone


def _find_described(manager: pluggy.PluginManager, name: str) -> BackendPlugin | None:
    return next((plugin for plugin in manager.hook.rdzv_backend() if plugin.name == name), None)


def _implementations(hook: str) -> list[pluggy.HookImpl]:
    """Every implementation of a hook in pluggy's order of calling: the last registered comes first."""
    return getattr(plugin_manager().hook, hook).get_hookimpls()[::-1]  # type: ignore[no-any-return]


def _name_of(implementation: pluggy.HookImpl) -> str:
    """What to call a plugin: pluggy names an object by a number."""
    name = implementation.plugin_name
    return type(implementation.plugin).__qualname__ if name.isdigit() else name


def _call(implementation: pluggy.HookImpl, **arguments: Any) -> Any:
    # As pluggy does, an implementation gets only the arguments that it names.
    return implementation.function(*(arguments[name] for name in implementation.argnames))


@contextmanager
def _wrap_plugin_errors(entry: EntryPoint) -> Iterator[None]:
    """Turn whatever goes wrong inside into an error that names the package of `entry`."""
    try:
        yield
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise RendezvousError(
            f"The plugin '{entry.name}' of the package '{package}' is broken: {type(error).__name__}: {error}. "
            f"Reinstall or uninstall {package}."
        ) from error


def _explain_unknown(name: str) -> str:
    installed = installed_backends()
    if name in _PACKAGES:
        advice = f"Install it with `pip install {_PACKAGES[name]}`."
    elif near := near_name(name, {*installed, *_PACKAGES}):
        install = "" if near in installed else f" (`pip install {_PACKAGES[near]}`)"
        advice = f"Did you mean '{near}'{install}?"
    else:
        advice = "Register it with `register`, or install the package that brings it."
    return (
        f"The rendezvous backend '{name}' is not registered: no installed package offers it. {advice} "
        f"Installed: {', '.join(installed) or 'none'}."
    )
