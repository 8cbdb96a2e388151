"""Rounds in which a run made no progress, by which it is given up. Pure."""

from collections.abc import Mapping, Sequence

from .notices import Failure


def without_progress(failures: Mapping[int, Failure], attempt: int, number: int) -> Sequence[tuple[int, Failure]]:
    """The rounds of an attempt without progress, consecutive ones, each with its first failure.

    Args:
        failures: By the number of the round.
        attempt: The attempt.
        number: The last round.
    """
    found: list[tuple[int, Failure]] = []
    while (failure := failures.get(number)) is not None and failure.attempt == attempt and not failure.progressed:
        found.append((number, failure))
        number -= 1
    return found[::-1]
