"""What a plugin may do besides bringing a backend: the pluggy specifications, and the events.

A plugin is a module or an object with functions that are marked `hookimpl`. It is an entry point of the group
``rdzv.hooks``, or registered by hand. A hook takes as many of its arguments as it wants, by name. All plugins are
loaded before the first hook is called. One that fails keeps it from no other.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

import pluggy
from rdzv_core.errors import RendezvousError, RendezvousParameterError
from rdzv_core.plugins import naming_package
from rdzv_core.text import printable

from .engine import aside

if TYPE_CHECKING:
    from .engine.records import NodeRecord

__all__ = [
    "Event",
    "EventKind",
    "Hooks",
    "hookimpl",
    "installed_hooks",
    "plugin_manager",
    "register_hooks",
    "unregister_hooks",
]

logger = logging.getLogger(__name__)

_PROJECT: Final = "rdzv"

hookspec: Final = pluggy.HookspecMarker(_PROJECT)
hookimpl: Final = pluggy.HookimplMarker(_PROJECT)
"""Marks a function as the implementation of one of the hooks of `Hooks`."""


class EventKind(Enum):
    """What can happen to a run, as one of its nodes sees it."""

    NODE_ARRIVED = "node arrived"
    NODE_LOST = "node lost"
    """Another member is gone, and has not said why. A node hears of its own absence as `EVICTED`, if at all."""
    NODE_LEFT = "node left"
    NODE_DRAINS = "node drains"
    NODE_FAILED = "node failed"
    """Its program was the first to fail in the running round, or was behind when those of others hung."""
    NODE_QUARANTINED = "node quarantined"
    ROUND_PUBLISHED = "round published"
    LEADER_CHANGED = "leader changed"
    CLOSED = "closed"
    EVICTED = "evicted"
    """This very node was away too long: the next round was formed without it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: What.
        run_id: In which run.
        round: In which round (0: none was published yet).
        node: The id of the node it is about: the arrived, lost, left or evicted one, the new
            leader, rank 0 of a new round, or who closed.
        cause: Why, in words.
    """

    kind: EventKind
    run_id: str
    round: int
    node: str
    cause: str


class Hooks:
    """The hooks. Implement any of them with `hookimpl`."""

    @hookspec
    def rdzv_event(self, event: Event) -> None:
        """Learn what happened.

        Called on a thread that takes one event after the other, for all nodes of the process, and that no node waits
        for: what has happened since may be more. Of events that wait a thousand are kept; what is lost, the log counts.
        An exception is only logged.
        """

    @hookspec(firstresult=True)
    def rdzv_assign_ranks(self, arrived: "Sequence[NodeRecord]", previous: Sequence[str]) -> Sequence[str] | None:
        """Order the nodes of a new round.

        Must be a pure function; the leader calls it, on a thread of its own. The result holds the id of every node in
        `arrived`, once, in rank order; None leaves it to the next plugin, then to the default. So does
        an exception or a result that is something else, after it is logged. All plugins together have five seconds:
        then the round gets the default order, and so do further ones as long as this call has not returned. A first
        node at a loopback address, where others are elsewhere, changes places with the next that they can reach.

        Args:
            arrived: The nodes that will form the round, in arrival order.
            previous: The ids of the round before in rank order; some may not be in `arrived`.
        """

    @hookspec
    def rdzv_health_check(self, run_id: str, labels: Mapping[str, str]) -> None:
        """Check that this node is fit to join, before it takes a slot. Raise anything to refuse to join."""


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(_PROJECT)
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
            with naming_package(entry):
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


def announce(events: Iterable[Event]) -> None:
    """Emit events, one after the other, on a thread that holds up no node."""
    # For none that takes them no thread is started: it costs as much as a call to the service.
    if plugin_manager().hook.rdzv_event.get_hookimpls():
        aside.announce(partial(emit, event) for event in events)


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


def are_ranks_assigned() -> bool:
    """Whether any plugin assigns ranks."""
    return bool(plugin_manager().hook.rdzv_assign_ranks.get_hookimpls())


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
