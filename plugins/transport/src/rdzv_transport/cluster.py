"""Which cluster of a service answers: a list of endpoints is meant to name the members of one."""

from collections.abc import Callable
from typing import Final

from .connection import Reply, Request
from .sockets import EndpointError

_FIRST: Final = "first"

_WAY_OUT: Final = (
    "name members of one. If a restored one has taken its place, start this node again, or set same_cluster=false"
)


class OneCluster:
    """The cluster that answered first, for all processes that a fork makes of this one; no other is believed.

    Args:
        question: Is answered by any member with its cluster's id, and changes nothing.
        told: The cluster's id in an answer; None: it does not say.
        always_asks: Whether the first endpoint is asked, too, since only the answer to the question tells.
        what: What the service calls a cluster.
        way_out: What the user does about another one.
    """

    def __init__(
        self,
        question: Request,
        told: Callable[[Reply], str | None],
        *,
        always_asks: bool = False,
        what: str = "cluster",
        way_out: str = _WAY_OUT,
    ) -> None:
        self.question = question
        self._told = told
        self._always_asks = always_asks
        self._what = what
        self._way_out = way_out
        # A dictionary: of two threads that hear of two clusters at once, one is first.
        self._known: dict[str, str] = {}

    @property
    def asks(self) -> bool:
        """Whether the question is asked before anything else goes over a connection."""
        return self._always_asks or _FIRST in self._known

    def check(self, reply: Reply) -> None:
        """Raise `EndpointError` for an answer that tells of another cluster: in ours, nothing was applied."""
        told = self._told(reply)
        if told is not None and told != (first := self._known.setdefault(_FIRST, told)):
            raise EndpointError(
                f"it belongs to another {self._what} ({told}) than the one that answered first ({first}); "
                f"{self._way_out}",
                applied=False,
            )
