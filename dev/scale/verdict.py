"""Whether what the nodes got is one world, with the ranks that it should have, and no false loss."""

from collections.abc import Collection, Sequence

from .node import ScaledNode

__all__ = ["expected_world", "problems"]


def expected_world(before: Sequence[str], here: Collection[str]) -> list[str]:
    """The ids in rank order: survivors keep their ranks, those beyond the world and newcomers fill the holes."""
    alive, size = set(here), len(here)
    world: list[str | None] = [one if one in alive else None for one in before[:size]]
    world += [None] * (size - len(world))
    others = [one for one in before[size:] if one in alive] + sorted(alive.difference(before))
    fillers = iter(others)
    return [next(fillers) if one is None else one for one in world]


def problems(nodes: Collection[ScaledNode], expected: Sequence[str], dead: Collection[str]) -> list[str]:
    """What is wrong with what the nodes got and heard; nothing: they are one world.

    Args:
        nodes: Those that live, each in a world.
        expected: Their ids in rank order.
        dead: The ids of those that have died.
    """
    found = []
    states = {node.state for node in nodes}
    if len(states) != 1:
        found.append(f"{len(states)} different worlds")
    sizes = {state.size for state in states if state is not None}
    if sizes != {len(expected)}:
        found.append(f"worlds of {sorted(sizes)} nodes instead of one of {len(expected)}")
    rank = {node_id: number for number, node_id in enumerate(expected)}
    wrong = [node for node in nodes if node.rank != rank[node.id]]
    if wrong:
        one = wrong[0]
        found.append(f"{len(wrong)} wrong ranks, such as {one.rank} instead of {rank[one.id]} of {one.id}")
    falsely = set().union(*(node.lost for node in nodes)).difference(dead)
    if falsely:
        found.append(f"{len(falsely)} nodes that live were reported as lost, such as {min(falsely)}")
    if evicted := sum(node.evicted > 0 for node in nodes):
        found.append(f"{evicted} nodes that live were evicted")
    return found
