"""How a leader asks the plugins for the ranks of a new world: one that hangs holds up no round."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from rdzv_core.threads import in_thread

from .. import hooks
from .aside import node_logger
from .records import NodeRecord

logger = node_logger(__name__)

Order = Sequence[str] | None
"""The ids of nodes in rank order; None: the default."""


class RankAssignment:
    """Asks on a thread of its own, of which there is one at most."""

    def __init__(self) -> None:
        """Have asked for nothing."""
        self._asked: Future[Order] | None = None

    def order(
        self, arrived: Sequence[NodeRecord], previous: Sequence[str], wait: Callable[[Future[Order]], None]
    ) -> Order:
        """What the plugins want; None: nothing, or they take too long.

        Args:
            arrived: The nodes of the new world, in arrival order.
            previous: The ids of the world before in rank order.
            wait: Waits for an answer, for as long as there is time.

        Raises:
            RendezvousConnectionError: The system has no room for another thread.
        """
        if not hooks.are_ranks_assigned():
            return None
        if self._asked is None or self._asked.done():
            self._asked = in_thread(partial(hooks.assign_ranks, arrived, previous), "rdzv-ranks")
            wait(self._asked)
            if self._asked.done():
                return self._asked.result()
        logger.warning("a plugin takes too long to assign ranks: the default order holds")
        return None
