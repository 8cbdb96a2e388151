"""Bugs to put back on purpose, to see that the simulator finds them.

Each is a difference to the real code: some text of a function, and what to put in its place.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rdzv.dynamic import leader, member, rules

from .clock import NodeClock
from .service import SimulatedService

__all__ = ["BUGS", "Bug", "put_back"]


@dataclass(frozen=True)
class Change:
    """A difference to one function.

    Attributes:
        where: The function.
        right: What stands there, once.
        wrong: What would stand there.
    """

    where: Callable[..., Any]
    right: str
    wrong: str


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        what: In words.
        breaks: The invariants that it may violate; the first one that is violated ends a run.
        changes: What is different.
    """

    what: str
    breaks: frozenset[int]
    changes: tuple[Change, ...]


def _bug(what: str, where: Callable[..., Any], right: str, wrong: str, *breaks: int) -> Bug:
    return Bug(what, frozenset(breaks), (Change(where, right, wrong),))


BUGS: Final[dict[str, Bug]] = {
    "unfenced-state": _bug(
        "The state is written whatever is there, instead of by a compare-and-set.",
        SimulatedService.put,
        "expect is not ANY and",
        'expect is not ANY and key != "control/state" and',
        1,
        2,
        5,
        6,
    ),
    "unfenced-return": _bug(
        "A node that lost its lease writes its record again, and does not fence the state.",
        member._fence,
        "if not _is_pending(control, decode(State, held.payload).round):",
        "if True:",
        2,
    ),
    "unannounced-round": _bug(
        "A leader does not say that it is about to form a round without a member.",
        leader._announce,
        "yield Put(",
        "yield from () if True else Put(",
        2,
    ),
    "no-exclusivity": _bug(
        "A world is formed while members are in the one before.",
        rules._occupied,
        "return any(",
        "return False and any(",
        2,
    ),
    "wall-clock": _bug(
        "Leases are timed by the clock on the wall.",
        NodeClock.__call__,
        "self._offset + self._timeline.now * self._rate",
        "self.wall()",
        2,
        4,
        10,
    ),
    "edited-world": _bug(
        "Whoever is lost is taken out of the running world.",
        rules.decide,
        "if state.closed or _occupied(state, here, gone):",
        "if gone:\n"
        "        return Publish(replace(state, world=tuple(one for one in state.world if one not in gone)))\n"
        "    if state.closed or _occupied(state, here, gone):",
        5,
    ),
    "unconditional-record": _bug(
        "A node writes its record whatever is there: a request that comes too late undoes a later one.",
        member._write_record,
        "after=before,",
        'after=__import__("rdzv").ANY,',
        2,
        4,
    ),
    "forgotten-election": _bug(
        "Whoever won the election by a write whose reply was lost never learns that he leads.",
        leader.elect,
        "if node.may_lead() and not node.leading and node.leader is not None and node.leader.node == node.id:",
        "if False:",
        4,
    ),
    "unfenced-rejoin": Bug(
        "A node that finds its lease lost when it joins opens a new one, and does not fence the state.",
        frozenset({2}),
        (
            Change(member._write_record, "node.settled = not node.known", "node.settled = node.settled"),
            Change(member._come_back, "_lose_lease(node)", "_lose_lease(node)\n    node.settled = False"),
        ),
    ),
}
"""By name; see ``python -m rdzv_conformance.simulator --bug NAME``."""


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Have the code with that bug, in this process.

    Raises:
        KeyError: There is no such bug.
        ValueError: The code is not any more what the bug is a difference to.
    """
    with ExitStack() as undo:
        for change in BUGS[name].changes:
            owner = _owner(change.where)
            setattr(owner, change.where.__name__, _changed(change))
            undo.callback(setattr, owner, change.where.__name__, change.where)
        yield


def _owner(function: Callable[..., Any]) -> Any:
    """The module or the class that a function is an attribute of."""
    owner: Any = sys.modules[function.__module__]
    for part in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, part)
    return owner


def _changed(change: Change) -> Any:
    source = textwrap.dedent(inspect.getsource(change.where))
    if source.count(change.right) != 1:
        raise ValueError(f"A bug does not fit the code any more: {change.right!r} should be there once in\n{source}")
    scope: dict[str, Any] = {}
    code = compile(source.replace(change.right, change.wrong), f"<{change.where.__name__} with a bug>", "exec")
    exec(code, change.where.__globals__, scope)  # noqa: S102 - our own code
    return scope[change.where.__name__]
