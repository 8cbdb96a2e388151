"""What a node tells the others of its run: that it drains, is ready for a drain, has failed, or gives the run up."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import rdzv
from rdzv_core.threads import start_thread

from .drains import DrainNotices
from .signals import Signals
from .workers import Worker

logger = logging.getLogger(__name__)

_RETRY: Final = 1.0
"""Seconds until what could not be said to the others is said again."""


@dataclass(eq=False)
class Speaker:
    """Speaks for one node. What may take a while, it says beside the command.

    Attributes:
        handler: The node's handler.
        signals: What the agent was asked for.
        drain: See `Agent`.
        say: Takes what the user should know.
    """

    handler: rdzv.DynamicRendezvousHandler
    signals: Signals
    drain: float | None
    say: Callable[[str], None]
    _draining: threading.Thread | None = field(default=None, init=False)
    _answering: threading.Thread | None = field(default=None, init=False)
    _answers_from: float = field(default=0.0, init=False)

    def drain_if_asked(self) -> None:
        """Announce that this node drains, beside the command: it goes in time, whether the service answers or not."""
        self.signals.look()
        if not self.signals.is_draining or self._draining is not None:
            return
        limit = self.drain or 0.0
        # The time runs from the signal on; tenths are all that its users read.
        seconds = round(max(0.0, limit - (time.monotonic() - self.signals.drain_since)), 1)

        sooner = self._drain_that_ends_within(seconds)
        within = f"{limit:g} s of the signal" if sooner is None else f"{sooner.seconds:.1f} s ({sooner.reason})"
        reason, said = "its agent was asked to end", "asked to end"
        if self.signals.is_unasked:
            reason, said = "its job is about to end", "the job is about to end"
            within = within.removesuffix(" of the signal")

        def announce() -> None:
            try:
                self.handler.drain(seconds, reason)
            except rdzv.RendezvousError as error:
                logger.warning("this node goes, and could not say so before: %s", error)

        with contextlib.suppress(rdzv.RendezvousConnectionError):
            # Where there is no room for it, the next look tries again.
            self._draining = start_thread(announce, name="rdzv-drain")
            self.say(f"{said}: this node leaves within {within}, so that the others can save work")

    def _drain_that_ends_within(self, seconds: float) -> rdzv.Drain | None:
        """The drain that this node was asked for before, if it is over so soon."""
        view = self.handler.view
        return next((one for one in view.drains if one.node == view.node_id and one.seconds <= seconds), None)

    def pass_on_drains(self, seen: Sequence[Worker], notices: DrainNotices) -> None:
        """Tell the workers of the drains, and the run once all of them are ready."""
        notices.send(seen, notices.show(self.handler.view.drains))
        is_answering = self._answering is not None and self._answering.is_alive()
        if is_answering or time.monotonic() < self._answers_from or not notices.are_answered(seen):
            return
        # If it fails, at once or later, it is tried again, and not at once.
        self._answers_from = time.monotonic() + _RETRY
        asked, nodes = notices.asked, notices.nodes

        def say_ready() -> None:
            try:
                self.handler.ready_to_drain(nodes)
            except Exception as error:
                logger.warning("the others do not know yet that this node is ready for the drain: %s", error)
            else:
                notices.answered, self._answers_from = asked, 0.0

        try:
            self._answering = start_thread(say_ready, name="rdzv-ready")
        except rdzv.RendezvousConnectionError as error:
            logger.warning("the others will know later that this node is ready for the drain: %s", error)

    def report_failure(self, reason: str, *, progressed: bool) -> None:
        """Tell the run of the first failure on this node in this round.

        Args:
            reason: In words.
            progressed: Whether any worker of this node has made progress in this round.
        """
        try:
            self.handler.report_failure(reason, progressed)
        except rdzv.RendezvousError as error:
            logger.warning("the failure of this node's program could not be reported: %s", error)
