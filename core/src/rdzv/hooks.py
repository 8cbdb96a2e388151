"""What a plugin may do besides bringing a backend: the pluggy specifications, and the events.

A plugin is a module or an object with functions that are marked `hookimpl`. It is an entry point of the group
``rdzv.hooks``, or registered by hand. A hook takes as many of its arguments as it wants, by name. `plugins` finds the
plugins and calls them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from .engine.records import NodeRecord

__all__ = ["Event", "EventKind", "hookimpl"]

PROJECT: Final = "rdzv"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function as the implementation of one of the hooks of `Hooks`."""


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
