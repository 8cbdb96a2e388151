"""The checker of histories: against known ones, against all orders tried one by one, and against the clock."""

import itertools
import random
import time
from collections.abc import Sequence

import pytest

from rdzv_conformance.linearizability import (
    Answer,
    Kind,
    Operation,
    _smaller,
    assert_linearizable,
    is_linearizable,
    shortest,
)

READ, PUT, CREATE, REPLACE, DELETE = Kind
DONE, LOST, UNKNOWN = Answer

LINEARIZABLE = {
    "nothing": [],
    "read what was put": [Operation(0, 0, 1, PUT, value="a"), Operation(1, 2, 3, READ, found="a")],
    "reads beside a put may differ": [
        Operation(0, 0, 9, PUT, value="a"),
        Operation(1, 1, 2, READ, found=None),
        Operation(1, 3, 4, READ, found="a"),
    ],
    "the later call may come first": [
        Operation(0, 0, 9, PUT, value="a"),
        Operation(1, 1, 8, PUT, value="b"),
        Operation(2, 10, 11, READ, found="a"),
    ],
    "one creation of two wins": [
        Operation(0, 0, 5, CREATE, value="a"),
        Operation(1, 0, 5, CREATE, LOST, value="b"),
    ],
    "lost because it was deleted": [
        Operation(0, 0, 1, PUT, value="a"),
        Operation(0, 2, 9, DELETE),
        Operation(1, 3, 4, REPLACE, LOST, value="b", expected="a"),
        Operation(1, 5, 6, CREATE, value="c"),
    ],
    "unknown, and never done": [
        Operation(0, 0, 1, PUT, UNKNOWN, value="a"),
        Operation(1, 2, 3, READ, found=None),
    ],
    "unknown, and done late": [
        Operation(0, 0, 1, PUT, UNKNOWN, value="a"),
        Operation(1, 2, 3, PUT, value="b"),
        Operation(1, 4, 5, READ, found="b"),
        Operation(1, 6, 7, READ, found="a"),
    ],
    "unknown replacement, known by its successor": [
        Operation(0, 0, 1, PUT, value="a"),
        Operation(0, 2, 3, REPLACE, UNKNOWN, value="b", expected="a"),
        Operation(1, 4, 5, REPLACE, value="c", expected="b"),
    ],
    "ended and began at the same moment": [
        Operation(0, 0, 5, PUT, value="a"),
        Operation(1, 5, 6, READ, found=None),
    ],
}
"""Histories that an order explains."""

NOT = {
    "stale read": (
        [
            Operation(0, 0, 1, PUT, value="a"),
            Operation(0, 2, 3, PUT, value="b"),
            Operation(1, 4, 5, READ, found="a"),
        ],
        "stale",
    ),
    "lost because it was there once": (
        [
            Operation(0, 0, 1, PUT, value="a"),
            Operation(0, 2, 3, DELETE),
            Operation(1, 4, 5, CREATE, LOST, value="c"),
        ],
        "refused",
    ),
    "there and back": (
        [
            Operation(0, 0, 9, PUT, value="a"),
            Operation(1, 1, 2, READ, found="a"),
            Operation(1, 3, 4, READ, found=None),
        ],
        "stale",
    ),
    "lost update": (
        [
            Operation(0, 0, 1, CREATE, value="a"),
            Operation(1, 2, 9, REPLACE, value="b", expected="a"),
            Operation(2, 2, 9, REPLACE, value="c", expected="a"),
        ],
        "lost update",
    ),
    "unknown, and done twice": (
        [
            Operation(0, 0, 1, PUT, UNKNOWN, value="a"),
            Operation(1, 2, 3, READ, found="a"),
            Operation(1, 4, 5, PUT, value="b"),
            Operation(1, 6, 7, READ, found="a"),
        ],
        "stale",
    ),
    "done before it was called": (
        [Operation(0, 0, 1, READ, found="a"), Operation(1, 2, 3, PUT, UNKNOWN, value="a")],
        "stale",
    ),
    "said to have failed": ([Operation(0, 0, 1, READ, found="a")], "no client has written"),
    "lost without a reason": (
        [
            Operation(0, 0, 1, PUT, value="a"),
            Operation(0, 2, 3, REPLACE, LOST, value="b", expected="a"),
        ],
        "refused",
    ),
    "two creations": ([Operation(0, 0, 9, CREATE, value="a"), Operation(1, 0, 9, CREATE, value="b")], "lost update"),
}
"""Histories that no order explains, and the word for each. None has an operation too many."""


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_known_histories_are_explained(name: str) -> None:
    assert_linearizable(LINEARIZABLE[name])


@pytest.mark.parametrize("name", NOT)
def test_known_faults_are_found_and_named(name: str) -> None:
    history, word = NOT[name]
    with pytest.raises(AssertionError, match=f"Not linearizable: .*{word}"):
        assert_linearizable(history)


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_all_orders_tried_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(50):
        history = _any_history(rng, rng.randrange(1, 6))
        verdict = is_linearizable(history)
        assert verdict == _is_linearizable_by_force(history), history
        verdicts.add(verdict)
    assert verdicts == {True, False}


@pytest.mark.parametrize("seed", range(20))
def test_what_one_value_has_answered_is_explained(seed: int) -> None:
    assert_linearizable(_true_history(random.Random(seed), processes=5, count=300))


@pytest.mark.parametrize("seed", range(10))
def test_one_wrong_answer_among_hundreds_is_found_and_little_is_shown(seed: int) -> None:
    rng = random.Random(seed)
    history = _true_history(rng, processes=4, count=120)
    # A value that was overwritten long ago, as by a follower that is cut off.
    first = next(one for one in history if one.kind is PUT and one.answer is DONE)
    end = max(one.ended for one in history)
    history += [
        Operation(9, end + 1, end + 2, PUT, value="new"),
        Operation(9, end + 3, end + 4, READ, found=first.value),
    ]
    assert not is_linearizable(history)
    proof = shortest(history)
    assert len(proof) <= 4, proof
    assert proof[0].value == proof[-1].found == first.value


def test_the_end_of_a_long_chain_is_shown_without_the_chain() -> None:
    chain = [Operation(0, 0, 1, CREATE, value="0")]
    chain += [Operation(0, 2 * n, 2 * n + 1, REPLACE, value=f"{n}", expected=f"{n - 1}") for n in range(1, 100)]
    chain.append(Operation(1, 190, 300, REPLACE, value="other", expected="97"))
    with pytest.raises(AssertionError, match=r"(?s)lost update.*these 3 of 101 operations.*put 97 -> done") as failure:
        assert_linearizable(chain)
    assert str(failure.value).count("process") == 3


@pytest.mark.parametrize("seed", range(20))
def test_the_shortest_proof_is_a_proof_without_a_part_too_many(seed: int) -> None:
    rng = random.Random(seed)
    found = 0
    while found < 20:
        history = _any_history(rng, 6)
        if not _is_linearizable_by_force(history):
            found += 1
            proof = shortest(history)
            assert proof
            assert not _is_linearizable_by_force(proof)
            assert all(
                is_linearizable([one for one in proof if one is not left]) or not left.only_looks for left in proof
            )


@pytest.mark.parametrize("seed", range(40))
def test_leaving_something_out_makes_nothing_wrong(seed: int) -> None:
    rng = random.Random(seed)
    tried = 0
    while tried < 100:
        history = _any_history(rng, 6)
        if is_linearizable(history):
            for operation in history:
                for smaller in _smaller(history, operation):
                    tried += 1
                    assert is_linearizable(smaller), (history, operation)


def test_a_history_of_thousands_is_checked_in_seconds() -> None:
    history = _true_history(random.Random(1), processes=8, count=4000)
    began = time.process_time()
    assert_linearizable(history)
    assert time.process_time() - began < 10


def _is_linearizable_by_force(history: Sequence[Operation]) -> bool:
    """Try all orders of all choices of the unknown operations."""
    unknown = [one for one in history if one.answer is UNKNOWN]
    answered = [one for one in history if one.answer is not UNKNOWN]
    return any(
        _explains(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*answered, *chosen])
    )


def _explains(order: Sequence[Operation]) -> bool:
    there: str | None = None
    for index, operation in enumerate(order):
        if any(later.answer is not UNKNOWN and later.ended < operation.began for later in order[index:]):
            return False
        if not operation.fits(there):
            return False
        there = operation.after(there)
    return True


def _any_history(rng: random.Random, count: int) -> list[Operation]:
    """Operations with any answers, right or wrong."""
    values = [None, *(str(n) for n in range(count))]
    history = []
    for number in range(count):
        kind = rng.choice(list(Kind))
        began = rng.randrange(12)
        answers = {READ: [DONE], PUT: [DONE, UNKNOWN], DELETE: [DONE, UNKNOWN]}.get(kind, [DONE, LOST, UNKNOWN])
        answer = rng.choice(answers)
        history.append(
            Operation(
                number,
                began,
                began + rng.randrange(1, 6),
                kind,
                answer,
                value=None if kind in (READ, DELETE) else str(number),
                expected=rng.choice(values[1:]) if kind is REPLACE else None,
                found=rng.choice(values) if kind is READ else None,
            )
        )
    return history


def _true_history(rng: random.Random, processes: int, count: int) -> list[Operation]:
    """The answers to clients of one real value; each operation happens at some moment between call and return."""
    there: str | None = None
    known: dict[int, str | None] = dict.fromkeys(range(processes))
    free = dict.fromkeys(range(processes), 0)
    moments = sorted(
        (moment, process, moment - rng.randrange(30), moment + rng.randrange(30))
        for moment, process in ((n * 10, rng.randrange(processes)) for n in range(count))
    )
    history = []
    for number, (moment, process, began, ended) in enumerate(moments):
        kind = rng.choice([READ, READ, PUT, CREATE, REPLACE, REPLACE, DELETE])
        expected = known[process] if kind is REPLACE else None
        if kind is REPLACE and expected is None:
            kind = READ
        began, ended = max(began, free[process]), max(ended, moment)
        if began > moment:
            continue
        value = None if kind in (READ, DELETE) else str(number)
        holds = kind in (PUT, DELETE, READ) or there == expected
        found = there if kind is READ else None
        happens = holds
        answer = DONE if holds else LOST
        if kind is not READ and rng.random() < 0.03:
            answer, found, happens = UNKNOWN, None, holds and rng.random() < 0.5
        history.append(Operation(process, began, ended, kind, answer, value, expected, found))
        if happens and kind is not READ:
            there = value
        known[process] = there if kind is READ else known[process]
        free[process] = ended + 1
    return history
