"""Removing everything under a prefix: each key together with its incarnation node, the deepest first, in one flight."""

import time
from collections.abc import Sequence
from typing import Final

from kazoo.exceptions import NoNodeError, NotEmptyError, ZookeeperError  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Delete, GetChildren  # type: ignore[import-untyped]

from .layout import Layout, is_incarnation_node, without_incarnation
from .session import Session
from .wire import BARRIER, Multi

_ROUNDS: Final = 5
"""How often to look again for what others have written meanwhile."""


def remove(layout: Layout, prefix: str, session: Session, deadline: float) -> None:
    """Remove every key at or under `prefix`; the run's own node too, if nothing is left under it.

    Raises:
        RendezvousConnectionError: It was not done by the deadline.
    """
    path = layout.path(prefix)
    for _ in range(_ROUNDS):
        removals = _removals(_find(path, session, deadline))
        # A part of a run leaves the rest of it, which is found not to be empty.
        last = [] if "/" in prefix else [Delete(layout.root, -1)]
        replies = session.call([*removals, *last], deadline) if removals or last else []
        results = [session.check(reply, path, NoNodeError, NotEmptyError) for reply in replies[: len(removals)]]
        if not any(isinstance(result, ZookeeperError) for result in results) or time.monotonic() >= deadline:
            return


def _find(path: str, session: Session, deadline: float) -> list[str]:
    """Every node at or under `path`, and their incarnation nodes."""
    beside = _children([path.rpartition("/")[0]], session, deadline, [BARRIER])
    level = found = [node for node in beside if path in (node, without_incarnation(node))]
    while level := [node for node in level if not is_incarnation_node(node)]:
        level = _children(level, session, deadline)
        found += level
    return found


def _children(nodes: Sequence[str], session: Session, deadline: float, first: Sequence[Multi] = ()) -> list[str]:
    """The nodes right under these."""
    replies = session.call([*first, *(GetChildren(node, False) for node in nodes)], deadline)[len(first) :]
    found = [(node, session.found(reply, node) or ()) for node, reply in zip(nodes, replies, strict=True)]
    return [f"{node}/{name}" for node, names in found for name in names]


def _removals(nodes: Sequence[str]) -> list[Multi]:
    """The transactions that remove nodes, each with its incarnation node; what is under a node goes before it."""
    together: dict[str, list[str]] = {}
    for node in sorted(
        nodes, key=lambda node: (without_incarnation(node).count("/"), is_incarnation_node(node)), reverse=True
    ):
        together.setdefault(without_incarnation(node), []).append(node)
    return [Multi([Delete(node, -1) for node in group]) for group in together.values()]
