"""Whose failure it was that ended a round. Pure functions of what the leader knows when it decides."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..outcome import Ending, Outcome
from . import rules
from .notices import Failure, Verdict
from .records import Departure, State
from .rules import Situation

_STALLED = 1 / 2
"""A node waits, or is waited for, if its last step is at least so many times as old as that of one that hangs."""


def outcomes(situation: Situation) -> Mapping[str, Outcome | None]:
    """How the round has ended on the members that are back, or whose record says that they left, by their ids."""
    state = situation.state
    if state is None:
        return {}
    members = frozenset(state.world)
    over = [node for node in situation.nodes if node.left is not None or node.last_round >= state.round]
    return {node.id: node.outcome for node in over if node.id in members}


def has_failed(situation: Situation) -> bool:
    """Whether the program of a member has failed, as far as the records say."""
    return any(outcome is not None and outcome.ending is not Ending.CHANGED for outcome in outcomes(situation).values())


def judged(failure: Failure, situation: Situation) -> Failure | None:
    """The first failure of the last round with the verdict on it; None: it is too early for one."""
    state = situation.state
    if state is None:
        return None
    ended, departed = outcomes(situation), rules.departed_from(state, situation)
    if because := _explanation(departed.values(), ended):
        return replace(failure, verdict=Verdict.EXPLAINED, because=because)
    if rules.is_in_use(state, situation.nodes, departed):
        return None
    if unknown := departed.keys() - ended.keys():
        # Whether its program had failed is not known any more.
        return replace(failure, verdict=Verdict.UNCLEAR, because=f"'{min(unknown)}' has left long before")
    hung = [one.age for one in ended.values() if one is not None and one.ending is Ending.HUNG]
    # Of the one that was the first to say so: another may have been away meanwhile.
    stalled_for = min(hung, default=0.0) * _STALLED
    first = ended.get(failure.node)
    if not hung or (first is not None and first.age < stalled_for):
        return replace(failure, verdict=Verdict.FIRST)
    return _judged_by_steps(failure, state, ended, stalled_for)


def _explanation(departed: Iterable[Departure], ended: Mapping[str, Outcome | None]) -> str | None:
    """The loss that a failure follows from, in words: a member is gone, or has left although its program worked."""
    for departure in departed:
        if not departure.left:
            return f"'{departure.node}' was lost: {departure.cause}"
        outcome = ended.get(departure.node)
        if departure.node in ended and (outcome is None or outcome.ending is Ending.CHANGED):
            return f"'{departure.node}' has left: {departure.cause}"
    return None


def _judged_by_steps(
    failure: Failure, state: State, ended: Mapping[str, Outcome | None], stalled_for: float
) -> Failure:
    """Of those that made no progress the one that is behind has kept the others waiting; of equals none."""
    steps: dict[str, int] = {}
    for member in state.world:
        outcome = ended.get(member)
        if outcome is None or outcome.step is None:
            return replace(failure, verdict=Verdict.UNCLEAR, because=f"the step of '{member}' is not known")
        if outcome.ending is Ending.CHANGED and not outcome.heard:
            # Others that did not learn of it may have hung as they waited for that one.
            return replace(failure, verdict=Verdict.UNCLEAR, because=f"'{member}' had left the round before that")
        if outcome.age >= stalled_for:
            steps[member] = outcome.step
    step = min(steps.values())
    behind = [member for member, there in steps.items() if there == step]
    if len(behind) > 1:
        return replace(failure, verdict=Verdict.UNCLEAR, because=f"{len(behind)} nodes had come to step {step}")
    others = f"the others to step {max(steps.values())}" if len(steps) > 1 else "and the others went on"
    how_far = f"had come to step {step}, {others}"
    because = f"'{behind[0]}' {how_far}"
    if behind == [failure.node]:
        return replace(failure, verdict=Verdict.BEHIND, because=because)
    reason = f"when '{failure.node}' hung, it {how_far}"
    return replace(failure, node=behind[0], reason=reason, verdict=Verdict.BEHIND, because=because)
