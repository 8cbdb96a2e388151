"""The one rule for every loop of a node: a loop that fails is recorded, and starts again after a pause."""

import logging
import math
from collections.abc import Callable

from rdzv_core.envelope import OtherVersionError
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousError

from .effects import Coroutine, Sleep
from .node import Node

logger = logging.getLogger(__name__)


def supervised(
    node: Node,
    loop: str,
    turn: Callable[[], Coroutine[None]],
    goes_on: Callable[[], bool] = lambda: True,
    most: float = math.inf,
) -> Coroutine[None]:
    """Take one turn after the other until the node stops, whatever exceptions they raise.

    A service that does not answer is a passing fault. Any other error is recorded under the loop's name, and the next
    turn that ends well clears it: see `Failures`.

    Args:
        node: The node that the loop belongs to.
        loop: The loop's name: the owner of its errors.
        turn: One turn, as a new coroutine. A turn that has ended well is progress: the pauses begin anew.
        goes_on: Asked before each turn: False ends the loop.
        most: Errors that are recorded, one after the other, which end the loop, too.
    """
    pauses, failures = node.pauses(), 0
    while failures < most and goes_on() and not node.stopped:
        try:
            yield from turn()
        except Exception as error:
            if isinstance(error, RendezvousConnectionError) and is_passing(error):
                node.failures.add_passing(loop, error)
                logger.debug("the loop '%s' of node '%s': %s", loop, node.id, error)
            elif not node.stopped:
                failures += 1
                # To a node that has read the run before, such bytes are corrupt like any others, and may heal.
                refused = isinstance(error, OtherVersionError) and node.run.snapshot is None
                first = node.failures.add(loop, error, lasts=refused) == 1
                # What lasts at once is for the caller to say.
                level = logging.WARNING if first and node.failures.lasting is None else logging.DEBUG
                trace = None if isinstance(error, RendezvousError) else error
                message = "the loop '%s' of node '%s' has failed, and starts again: %r"
                logger.log(level, message, loop, node.id, error, exc_info=trace)
            yield Sleep(node.clock() + next(pauses))
        else:
            node.failures.clear(loop)
            pauses, failures = node.pauses(), 0


def is_passing(error: Exception) -> bool:
    """Whether an error only says that the service did not answer, or not with success: trying again may help."""
    return isinstance(error, RendezvousConnectionError) and not isinstance(error, RendezvousDeniedError)
