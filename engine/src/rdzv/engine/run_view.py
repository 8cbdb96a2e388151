"""What one node sees of its run in the service."""

import math
from dataclasses import dataclass
from enum import Enum

from .client import DecodedSnapshot, VersionedValue
from .notices import NONE, Notices
from .records import LeaderRecord, Page, RunStatus, State


class Presence(Enum):
    """Whether the state that a node knows is still in the service."""

    THERE = "it is, or there was none yet"
    MISSING = "it seems to be gone; that is not verified yet"
    DELETED = "it is gone although this node's lease lives: the run was removed"


@dataclass
class RunView:
    """What the service shows of a run.

    Attributes:
        snapshot: What it holds under ``control``; None until it was seen once.
        state: The published state, None before the first.
        rank: This node's rank in the world of the state; None: it is not a member.
        page: The page of that world on which it stands, if the world stands on pages.
        version: The versioned value that the state came from: its token is the condition of the next write. None: a
            state would be the first.
        seen_at: The moment at which it was last found in the service.
        presence: Whether it is still there.
        status: The leader's news of the run.
        leader: The node that leads.
        notices: Who drains, whose program failed first, who is quarantined.
    """

    snapshot: DecodedSnapshot | None = None
    state: State | None = None
    rank: int | None = None
    page: Page | None = None
    version: VersionedValue | None = None
    seen_at: float = -math.inf
    presence: Presence = Presence.THERE
    status: RunStatus | None = None
    leader: LeaderRecord | None = None
    notices: Notices = NONE

    def running(self) -> State | None:
        """The state while a round is running; else None."""
        return self.state if self.state is not None and self.state.size and self.state.closed is None else None

    def lacks_page(self) -> bool:
        """Whether the world stands on pages, and this node's was not there when it looked."""
        return self.state is not None and self.state.pages is not None and self.page is None

    def found(self, there: bool) -> None:
        """Note whether the state was found in the service. A run that was removed stays so."""
        if self.presence is not Presence.DELETED:
            self.presence = Presence.THERE if there else Presence.MISSING
