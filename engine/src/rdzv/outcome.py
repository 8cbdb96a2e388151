"""How a round has ended on one node, which tells the leader whose failure it was."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Ending", "Outcome"]


class Ending(StrEnum):
    """Why the program of a node works no more in its round."""

    CHANGED = "the world changed"
    FAILED = "it failed"
    HUNG = "it made no progress for too long"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round has ended on a node.

    Attributes:
        ending: Why its program works no more.
        step: The step that the program was at, as far as it reports steps; of several processes the lowest one. Those
            below 0 count as 0.
        age: Seconds since the program reported it.
        spent: The program has no restart left: the node takes part in the next round only if it has to pay none.
        heard: The node had heard of a failure in the round when its program was ended: that, and nothing else, may have
            ended it.
    """

    ending: Ending = Ending.FAILED
    step: int | None = None
    age: float = 0.0
    spent: bool = False
    heard: bool = False
