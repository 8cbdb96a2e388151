"""Which failures cost a restart."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from rdzv.engine.notices import Failure, Verdict

from rdzv_cli.agent import Restarts
from rdzv_cli.agent.failures import WorkerFailure

FAILS = WorkerFailure("it ended with exit code 7", 7)


@dataclass
class View:
    """What a handler knows of the round before."""

    pays: bool = False
    ended_by: Failure | None = None


@dataclass
class Handler:
    view: View = field(default_factory=View)


def handler(verdict: Verdict | None, pays: bool) -> Any:
    return Handler(View(pays, Failure("b", "it was behind", False, verdict=verdict, because="'c' was lost")))


def test_a_failure_is_counted_when_the_next_world_stands(caplog: pytest.LogCaptureFixture) -> None:
    restarts = Restarts(1)
    restarts.fail(FAILS)
    assert (restarts.count, restarts.are_spent) == (0, False)
    assert restarts.settle(handler(Verdict.FIRST, True)) is None
    assert (restarts.count, restarts.are_spent) == (1, True)
    restarts.fail(FAILS)
    assert restarts.settle(handler(Verdict.FIRST, True)) == FAILS
    assert caplog.messages == [FAILS.what, "that failure costs restart 1 of 1", FAILS.what]


def test_one_that_is_explained_costs_none(caplog: pytest.LogCaptureFixture) -> None:
    restarts = Restarts(0)
    restarts.fail(FAILS)
    assert restarts.pending(handler(None, False)) == FAILS
    assert restarts.settle(handler(Verdict.EXPLAINED, False)) is None
    assert restarts.count == 0
    assert caplog.messages[1:] == ["that failure costs no restart: 'c' was lost"]
    # It is forgotten.
    assert restarts.pending(handler(None, False)) is None
    assert restarts.settle(handler(None, False)) is None


def test_one_that_no_other_could_explain_is_said_with_its_restart(caplog: pytest.LogCaptureFixture) -> None:
    assert Restarts(1).pay(FAILS) is None
    assert caplog.messages == [f"{FAILS.what}; restart 1 of 1"]


def test_one_that_was_behind_pays_though_its_command_works() -> None:
    restarts = Restarts(1)
    assert restarts.settle(handler(Verdict.BEHIND, True)) is None
    assert restarts.count == 1
    last = WorkerFailure("it was behind")
    assert restarts.pending(handler(Verdict.BEHIND, True)) == last
    assert restarts.settle(handler(Verdict.BEHIND, True)) == last


def test_a_failure_is_counted_once() -> None:
    restarts, told = Restarts(1), handler(Verdict.FIRST, True)
    restarts.fail(FAILS)
    assert restarts.settle(told) is None
    # The round runs that the view tells of the one before.
    assert restarts.are_spent
    assert restarts.pending(told) is None
