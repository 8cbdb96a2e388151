"""How a leader removes the garbage of its run."""

from collections.abc import Collection

from . import garbage
from .client import DecodedSnapshot
from .effects import Coroutine, Delete
from .node import Node
from .notices import nodes_that_drain
from .records import State, round_folder


class GarbageCollector:
    """What a leader remembers of the garbage that it has removed.

    Args:
        node: The node that leads.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._removed: set[str] = set()
        self._swept = 0
        self._gone_since: dict[str, float] = {}

    def collect(self, known: Collection[str]) -> Coroutine[None]:
        """Remove what is not needed any more.

        By the keys that it finds, not by what this leader has published: the one before may have died, and the
        reply to a write may have been lost.

        Args:
            known: The ids of the nodes that have a record.
        """
        node = self._node
        state, control = node.run.state, node.run.snapshot
        if state is None or control is None:
            return
        for prefix in garbage.of_pending_rounds(control, state, state.round):
            if prefix not in self._removed:
                yield Delete(prefix, node.background_deadline())
                self._removed.add(prefix)
        for key in self._outdated_notices(state, control, known):
            yield Delete(key, node.background_deadline())
        rounds = garbage.old_rounds(state, self._swept)
        self._swept = rounds.start - 1
        for number in rounds:
            yield Delete(round_folder(number), node.background_deadline())
            self._swept = number

    def _outdated_notices(self, state: State, control: DecodedSnapshot, known: Collection[str]) -> list[str]:
        now = self._node.clock()
        # A snapshot of the nodes may be older than the notice: not at once.
        gone = nodes_that_drain(control).difference(known)
        self._gone_since = {node: self._gone_since.get(node, now) for node in gone}
        over = [node for node, since in self._gone_since.items() if now >= since + self._node.ttl]
        return garbage.of_notices(control, state, over)
