"""What one node sees of its run in the service."""

import math
from dataclasses import dataclass
from enum import Enum

from .client import DecodedSnapshot, VersionedValue
from .notices import NONE, Notices
from .records import LEADER_KEY, Closed, LeaderRecord, Page, RunStatus, State, decode_state


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

    def shows_no_leader(self) -> bool:
        """Whether the snapshot has no leader; before the first one, none is known."""
        return self.snapshot is None or self.snapshot.get(LEADER_KEY) is None

    def running(self) -> State | None:
        """The state while a round is running; else None."""
        return self.state if self.state is not None and self.state.size and self.state.closed is None else None

    def closed(self, attempt: int) -> Closed | None:
        """Why an attempt is over for a node that takes part in it; None while it is not."""
        if self.presence is Presence.DELETED:
            return Closed("", "the run was removed from the service", done=False)
        if self.state is None or self.state.attempt < attempt:
            return None
        if self.state.attempt > attempt:
            return Closed("", f"superseded by attempt {self.state.attempt}", done=False)
        return self.state.closed

    def is_over(self, attempt: int) -> bool:
        """Whether an attempt is closed, or a later one has begun."""
        state = self.state
        return state is not None and (state.attempt > attempt or (state.attempt == attempt and bool(state.closed)))

    def nodes_known(self, least: int) -> int:
        """About how many nodes take part: as many as a world needs, which is `least`, where there was none."""
        in_world = least if self.state is None else self.state.size
        return in_world if self.status is None else max(in_world, self.status.present)

    def lacks_page(self) -> bool:
        """Whether the world stands on pages, and this node's was not there when it looked."""
        return self.state is not None and self.state.pages is not None and self.page is None

    def is_news(self, versioned: VersionedValue) -> bool:
        """Whether this is a newer state than the one that is known."""
        return self.version is None or versioned.envelope.supersedes(self.version.envelope)

    def take(self, versioned: VersionedValue | None, page: Page | None, node: str) -> State | None:
        """Take a state from the watch, or from a write of the node, if it is newer than the one that is known.

        Args:
            versioned: The state; None: there is none.
            page: The page on which the node stands, if its world stands on pages.
            node: The node's id.

        Returns:
            The state, if it is newer.
        """
        # Only deleting the whole run, or a service that forgot, takes a state away; but a snapshot may also be older
        # than the node's own write. The keep-alive loop finds out. A run that was removed stays so.
        if self.presence is not Presence.DELETED:
            self.presence = Presence.MISSING if versioned is None and self.version is not None else Presence.THERE
        if versioned is None:
            return None
        if self.version is not None and not self.is_news(versioned):
            if versioned.envelope.nonce == self.version.envelope.nonce:
                # The same value may have been put back by other means: then it has another token.
                self.version = versioned
                if page is not None:
                    self.page, self.rank = page, page.ranks.get(node)
            return None
        state = decode_state(versioned.payload)
        self.state, self.version, self.page = state, versioned, page
        ranks = {member: rank for rank, member in enumerate(state.world)} if page is None else page.ranks
        self.rank = ranks.get(node)
        return state
