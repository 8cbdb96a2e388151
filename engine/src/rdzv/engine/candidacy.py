"""When one node stands for election, and the term in which it leads. No I/O, no threads.

Of many nodes that see together that none leads a few stand at once, by chance; the others follow a moment, a second or
more later, unless they have heard of a leader by then. So an election costs the service as much as a few claims.
"""

import math
from dataclasses import dataclass
from typing import Final

from .registration import NodeState, Registration
from .run_view import RunView

FIRST_CANDIDATES: Final = 2
"""Of many nodes that see at once that there is no leader, so many, on average, stand for election at once."""

CLAIM_PAUSE: Final = 0.05
"""Seconds after which more stand, unless they have heard of a claim by then."""

CANDIDATES: Final = 12
"""So many, on average, have stood by then."""

NO_LEADER_TIMEOUT: Final = 1.0
"""Seconds after which others do, if there is still no leader: the election may have failed."""

MORE_CANDIDATES: Final = 4
"""So many times as many as before: those that are slow to hear of a leader do not all stand."""


@dataclass
class Candidacy:
    """The part of one node in elections. Moments are seconds on the node's clock.

    Attributes:
        node: The node's id.
        attempt: The attempt of the run that it takes part in.
        run: What the service shows of the run.
        registration: The node's record, and its state.
        term: The term in which the node leads; 0: it does not lead.
        claims: Whether a claim of the node may be on its way to the service: it was sent since the node resigned last.
        elections: How many terms it has begun.
        stands_from: The moment before which it does not stand for election: it has just resigned, or others stand
            first.
    """

    node: str
    attempt: int
    run: RunView
    registration: Registration
    term: int = 0
    claims: bool = False
    elections: int = 0
    stands_from: float = -math.inf

    def draw(self, nodes: int, chance: float, now: float) -> None:
        """Draw from when on the node stands for election: there is no leader, as many see at once.

        Args:
            nodes: How many see it.
            chance: A number of chance from 0 up to 1.
            now: The moment.
        """
        place = chance * nodes
        pause = CLAIM_PAUSE if FIRST_CANDIDATES < place <= CANDIDATES else 0.0
        moments = math.ceil(math.log(max(place / CANDIDATES, 1.0), MORE_CANDIDATES))
        self.stands_from = max(self.stands_from, now + pause + moments * NO_LEADER_TIMEOUT)

    def next_election(self, now: float) -> float:
        """The moment at which the node stands for election, or stands again, if there is no leader by then."""
        soon = now + NO_LEADER_TIMEOUT
        return min(soon, self.stands_from) if self.stands_from > now else soon

    def may_lead(self, now: float) -> bool:
        """Whether the node could lead: it is registered, and there is something to lead."""
        registered = self.registration.state is NodeState.REGISTERED
        return registered and now >= self.stands_from and not self.run.is_over(self.attempt)

    def sees_no_leader(self) -> bool:
        """Whether the service shows no leader of the run that the node is in or waits for, nor the node itself, if it
        believes to lead."""
        leader = self.run.leader
        # Its own claim outlives its lead: it has resigned, and the service did not hear of it.
        unseen = self.run.shows_no_leader() or leader is None or (leader.node == self.node and not self.term)
        return unseen and self.registration.record is not None and not self.run.is_over(self.attempt)

    def begin_term(self) -> int:
        """Begin to lead; returns the number of the term."""
        self.elections += 1
        self.term = self.elections
        return self.term

    def step_down(self) -> None:
        """Cease to lead; another that leads goes on."""
        self.term = 0
        if self.run.leader is not None and self.run.leader.node == self.node:
            self.run.leader = None
