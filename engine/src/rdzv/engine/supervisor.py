"""The one rule for every loop of a node: a loop that fails is recorded, and starts again after a pause."""

import logging
import math
from collections.abc import Callable

from rdzv_core.envelope import OtherVersionError
from rdzv_core.errors import RendezvousConnectionError, RendezvousError

from .aside import node_logger
from .effects import Coroutine, Sleep
from .node import Node

logger = node_logger(__name__)


def supervised(
    node: Node,
    loop: str,
    turn: Callable[[], Coroutine[None]],
    goes_on: Callable[[], bool] = lambda: True,
    most: float = math.inf,
) -> Coroutine[None]:
    """Take one turn after the other until the node stops, whatever exceptions they raise.

    A service that does not answer, or refuses, is a passing fault. Any other error is recorded under the loop's name,
    and the next turn that ends well clears it: see `Failures`.

    Args:
        node: The node that the loop belongs to.
        loop: The loop's name: the owner of its errors.
        turn: One turn, as a new coroutine. A turn that has ended well is progress: the pauses begin anew.
        goes_on: Asked before each turn: False ends the loop.
        most: Errors that are recorded, one after the other, which end the loop, too.
    """
    pauses, failures = node.pauses(), 0
    while failures < most and goes_on() and not node.stopped:
        began = node.clock()
        try:
            yield from turn()
        except Exception as error:
            if isinstance(error, RendezvousConnectionError):
                note_passing(node, loop, error, began)
            elif not node.stopped:
                failures += 1
                # To a node that has read the run before, such bytes are corrupt like any others, and may heal.
                is_new = node.run.snapshot is None
                refused = isinstance(error, OtherVersionError) and is_new
                is_news = node.failures.unsaid(error)
                first = node.failures.add(loop, error, lasts=refused) == 1
                # A caller that waits for the first look says what lasts.
                level = logging.WARNING if first and is_news and not is_new else logging.DEBUG
                trace = None if isinstance(error, RendezvousError) else error
                message = "the loop '%s' of node '%s' has failed, and starts again: %s"
                logger.log(level, message, loop, node.id, error, exc_info=trace)
            yield Sleep(node.clock() + pauses.after(error))
        else:
            note_success(node, loop)
            pauses, failures = node.pauses(), 0


def note_passing(node: Node, loop: str, error: RendezvousConnectionError, began: float) -> None:
    """Note a passing fault of a loop, which has begun with it at that moment; say so once if the service refuses."""
    was_refused = node.failures.refusal is not None
    node.failures.add_passing(loop, error, began)
    if node.failures.refusal is not None and not was_refused:
        message = "the service of '%s' refuses node '%s', which asks it again and again for %.0f s: %s"
        logger.warning(message, node.settings.run, node.id, node.failures.patience(), error)
    else:
        logger.debug("the loop '%s' of node '%s': %s", loop, node.id, error)


def note_success(node: Node, loop: str) -> None:
    """Note that a loop goes well; say so if the service has refused until now."""
    was_refused = node.failures.refusal is not None
    node.failures.clear(loop)
    if was_refused and node.failures.refusal is None:
        logger.warning("the service of '%s' does not refuse node '%s' any more", node.settings.run, node.id)
