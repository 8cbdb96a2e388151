"""What plugins may implement: the pluggy specifications, and the values they exchange.

A plugin is a module (or object) with functions marked `hookimpl`. One that brings a backend is an
entry point of the group ``rdzv`` with the backend's name; one for the other hooks is an entry point
of the group ``rdzv.hooks``; either may be registered by hand instead. A hook takes as many of its
arguments as it wants, by name. `plugins` finds and calls them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pluggy

from .backend import RendezvousBackend
from .endpoints import hide_login
from .options import Option

if TYPE_CHECKING:
    from .engine.records import NodeRecord
    from .parameters import RendezvousParameters

__all__ = ["BackendPlugin", "Event", "EventKind", "hookimpl"]

PROJECT: Final = "rdzv"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function as the implementation of one of the hooks of `Hooks`."""


@dataclass(frozen=True)
class BackendPlugin:
    """What a backend's entry point answers. Making it must import no client library.

    Attributes:
        name: The backend's name in the configuration; equal to the entry point's name.
        summary: One line for ``rdzv backends``.
        options: Every option that this backend understands.
        create_backend: Makes the backend and the store for parameters; imports what it needs when
            called. Raises `RendezvousParameterError` for parameters it cannot use, and does not
            touch the network.
        backend_type: Imports and returns the backend's class (for its declared capabilities).
        default_endpoint: The endpoint when the user gives none; None where one is needed.
        example_endpoint: What one looks like, for who gave none.
        describe_endpoint: Says for people what an endpoint means, in a few words and without secrets.
        check_shared: Raises `RendezvousParameterError` for parameters that give each process a service of its own, so
            that no other process finds it. The subcommands of ``rdzv`` about a run ask it: they start programs that use
            the same service, or look at one that others use.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    create_backend: Callable[["RendezvousParameters"], tuple[RendezvousBackend, Any]]
    backend_type: Callable[[], type[RendezvousBackend]]
    default_endpoint: str | None = None
    example_endpoint: str = "host:port"
    describe_endpoint: Callable[[str], str] = hide_login
    check_shared: Callable[["RendezvousParameters"], None] = lambda params: None


class EventKind(Enum):
    """What can happen to a run, as one of its nodes sees it."""

    NODE_ARRIVED = "node arrived"
    NODE_LOST = "node lost"
    """Another member is gone, and has not said why. A node hears of its own absence as `EVICTED`, if at all."""
    NODE_LEFT = "node left"
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
    def rdzv_backend(self) -> BackendPlugin:  # type: ignore[empty-body]
        """Describe the backend that this plugin brings."""

    @hookspec
    def rdzv_event(self, event: Event) -> None:
        """Learn what happened. Called on a thread of the handler: be quick; an exception is only logged."""

    @hookspec(firstresult=True)
    def rdzv_assign_ranks(self, arrived: "Sequence[NodeRecord]", previous: Sequence[str]) -> Sequence[str] | None:
        """Order the nodes of a new round.

        Must be a pure function; the leader calls it. The result holds the id of every node in
        `arrived`, once, in rank order; None leaves it to the next plugin, then to the default. So does
        an exception or a result that is something else, after it is logged.

        Args:
            arrived: The nodes that will form the round, in arrival order.
            previous: The ids of the round before in rank order; some may not be in `arrived`.
        """

    @hookspec
    def rdzv_health_check(self, run_id: str, labels: Mapping[str, str]) -> None:
        """Check that this node is fit to join, before it takes a slot. Raise anything to refuse to join."""
