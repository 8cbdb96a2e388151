"""Which failures of the command cost its node a restart: those that no other node explains."""

import logging
from dataclasses import dataclass, field

import rdzv

from .failures import WorkerFailure

logger = logging.getLogger(__name__)


@dataclass
class Restarts:
    """The restarts of one node.

    Attributes:
        most: How many there may be.
        count: How many there were: the command has failed here, by no fault of another node, and was to begin again.
    """

    most: int = 0
    count: int = 0
    _failure: WorkerFailure | None = field(default=None, init=False)
    _settled: object = field(default=None, init=False)

    @property
    def are_spent(self) -> bool:
        """Whether none is left."""
        return self.count >= self.most

    def fail(self, failure: WorkerFailure) -> None:
        """Note that the command has failed. What that costs is known when the next world stands."""
        self._failure = failure
        logger.warning("%s", failure.what)

    def settle(self, handler: rdzv.DynamicRendezvousHandler) -> WorkerFailure | None:
        """Count what has ended the round before this one, if it was this node's own failure; returns as `pay`."""
        view = handler.view
        # The view knows of it until the node asks for another round.
        self._settled = view.ended_by
        if view.pays:
            return self.pay(self._failure or _behind(handler))
        if self._failure is not None:
            self._failure = None
            because = (view.ended_by and view.ended_by.because) or "another node has ended the round"
            logger.warning("that failure costs no restart: %s", because)
        return None

    def pay(self, failure: WorkerFailure) -> WorkerFailure | None:
        """Count a failure.

        Returns:
            The failure if no restart is left: the node ends. None: the command begins again.
        """
        # What `fail` has noted, it has said.
        what = "that failure costs" if failure is self._failure else f"{failure.what};"
        self._failure = None
        if self.are_spent:
            return failure
        self.count += 1
        logger.warning("%s restart %d of %d", what, self.count, self.most)
        return None

    def pending(self, handler: rdzv.DynamicRendezvousHandler) -> WorkerFailure | None:
        """The failure that is not counted yet, as no next world has come; None: there is none."""
        view = handler.view
        is_new = view.pays and view.ended_by is not self._settled
        return self._failure or (_behind(handler) if is_new else None)


def _behind(handler: rdzv.DynamicRendezvousHandler) -> WorkerFailure:
    """The failure of a node whose command works, as far as its agent knows."""
    ended_by = handler.view.ended_by
    return WorkerFailure(ended_by.reason if ended_by else "it was behind when other nodes hung")
