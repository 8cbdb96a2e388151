"""Removing everything under a prefix: each key together with its incarnation node, the deepest first, in one flight."""

import time
from collections.abc import Sequence
from typing import Final

from . import wire
from .failures import explain
from .layout import Layout, is_incarnation_node, without_incarnation
from .session import Session

__all__ = ["remove"]

_ROUNDS: Final = 5
"""How often to look again for what others have written meanwhile."""


def remove(layout: Layout, prefix: str, session: Session, who: str, deadline: float) -> None:
    """Remove every key at or under `prefix`; the run's own node too, if nothing is left under it.

    Raises:
        RendezvousConnectionError: It was not done by the deadline.
    """
    path = layout.path(prefix)
    for _ in range(_ROUNDS):
        removals = _removals(_find(path, session, who, deadline))
        # A part of a run leaves the rest of it, which is found not to be empty.
        last = [] if "/" in prefix else [wire.Delete(layout.root, -1)]
        replies = session.call([*removals, *last], deadline) if removals or last else []
        missed = [reply for reply in replies[: len(removals)] if isinstance(reply.result, wire.ZookeeperError)]
        for reply in missed:
            if not isinstance(reply.result, (wire.NoNodeError, wire.NotEmptyError)):
                raise explain(reply.result, path, who) from reply.result
        if not missed or time.monotonic() >= deadline:
            return


def _find(path: str, session: Session, who: str, deadline: float) -> list[str]:
    """Every node at or under `path`, and their incarnation nodes."""
    parent = path.rpartition("/")[0]
    (beside,) = _children([parent], session, who, deadline, after=wire.BARRIER)
    found = [node for node in beside if path in (node, without_incarnation(node))]
    level = found
    while level := [node for node in level if not is_incarnation_node(node)]:
        level = [node for nodes in _children(level, session, who, deadline) for node in nodes]
        found += level
    return found


def _children(
    nodes: Sequence[str], session: Session, who: str, deadline: float, *, after: wire.Request | None = None
) -> list[list[str]]:
    """The nodes right under each."""
    first = [after] if after else []
    replies = session.call([*first, *(wire.GetChildren(node, False) for node in nodes)], deadline)[len(first) :]
    found: list[list[str]] = []
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply.result, wire.NoNodeError):
            found.append([])
        elif isinstance(reply.result, wire.ZookeeperError):
            raise explain(reply.result, node, who) from reply.result
        else:
            found.append([f"{node}/{name}" for name in reply.result])
    return found


def _removals(nodes: Sequence[str]) -> list[wire.Multi]:
    """The transactions that remove nodes, each with its incarnation node; what is under a node goes before it."""
    together: dict[str, list[str]] = {}
    for node in sorted(
        nodes, key=lambda node: (without_incarnation(node).count("/"), is_incarnation_node(node)), reverse=True
    ):
        together.setdefault(without_incarnation(node), []).append(node)
    return [wire.Multi([wire.Delete(node, -1) for node in group]) for group in together.values()]
