"""The table of what an observer knows of a lease, and the moments at which it looks."""

import math
import random

import pytest
from rdzv_core.backend import ABSENT

from rdzv.engine.lease_observer import TRANSITIONS, LeaseObserver, LeaseState, Trigger

INTERVAL, TTL, SCAN = 5.0, 15.0, 0.75
FEW, MANY = 16, 64
MEAN = SCAN * MANY / 16
"""Seconds between two looks of one of many observers, on average."""
LAST = INTERVAL + SCAN
"""Seconds between two looks in which no heartbeat can have been missed."""
TABLE = {(line.source, line.trigger): line.target for line in TRANSITIONS}


class Quarter(random.Random):
    """No chance: always the first quarter."""

    def random(self) -> float:
        return 0.25


class OneLease(LeaseObserver):
    """An observer of one lease, and the moment on its clock."""

    def __init__(self, observers: int, interval: float = INTERVAL) -> None:
        self.known, self.now = observers, 1000.0
        super().__init__(interval, lambda: self.known, Quarter())

    def read(self, token: object = ABSENT, after: float = 0.0, ttl: float = TTL) -> LeaseState:
        """Read its heartbeat some seconds later."""
        self.now += after
        self.observe("a", token, ttl, self.now)
        return self.state("a")

    @property
    def rests(self) -> float:
        """Seconds for which it does not look."""
        return self.next_look("a") - self.now


def test_every_state_may_end_and_the_end_has_no_way_out() -> None:
    ends = {source for (source, trigger), target in TABLE.items() if target is LeaseState.ENDED}
    assert ends == set(LeaseState) - {LeaseState.ENDED}
    assert {trigger for (_, trigger), target in TABLE.items() if target is LeaseState.ENDED} == {Trigger.EXPIRED}


@pytest.mark.parametrize("is_read", [False, True])
def test_one_of_few_counts_from_when_it_sees_a_lease(is_read: bool) -> None:
    observer = OneLease(FEW)
    assert observer.state("a") is LeaseState.UNSEEN
    if is_read:
        assert observer.read(1) is LeaseState.LIVE
    else:
        assert observer.see("a", TTL, observer.now) == observer.now + SCAN
    assert (observer.state("a"), observer.rests) == (LeaseState.LIVE, SCAN)
    assert observer.read(1 if is_read else ABSENT, SCAN) is LeaseState.SILENT
    for _ in range(19):
        assert observer.read(1 if is_read else ABSENT, SCAN) is LeaseState.SILENT
        assert not observer.is_overdue("a", observer.now)
    # The last moment is one of its life.
    assert observer.now == 1000.0 + TTL
    assert observer.is_overdue("a", observer.now + 0.001)


def test_what_is_seen_again_is_not_counted_anew() -> None:
    observer = OneLease(FEW)
    looks = observer.see("a", TTL, observer.now)
    assert observer.see("a", TTL, observer.now + 0.5) == looks


@pytest.mark.parametrize("interval", [0.25, 60.0])
def test_one_of_few_looks_once_an_interval_or_more_often(interval: float) -> None:
    observer = OneLease(FEW, interval)
    observer.read(1)
    assert observer.rests == min(interval, SCAN) == observer.scan_interval


def test_it_looks_when_a_short_lease_is_over() -> None:
    observer = OneLease(FEW)
    observer.read(1, ttl=0.5)
    assert observer.rests == 0.5
    observer.read(1, ttl=1.0)
    observer.read(2, ttl=1.0)
    observer.read(2, SCAN, ttl=1.0)
    assert observer.rests == 0.25


def test_one_of_many_reads_later_by_chance_and_then_when_the_next_heartbeat_is_due() -> None:
    observer = OneLease(MANY)
    assert observer.see("a", TTL, observer.now) == observer.now + MEAN / 4
    assert observer.state("a") is LeaseState.NOTED
    assert observer.read(7, MEAN / 4) is LeaseState.LIVE
    assert observer.rests == INTERVAL
    # It has come: others look meanwhile.
    assert observer.read(8, INTERVAL) is LeaseState.LIVE
    assert observer.rests == 2 * MEAN / 4
    # It has not: from then on it looks like one of few.
    assert observer.read(8, 2 * MEAN / 4) is LeaseState.SILENT
    assert observer.rests == SCAN


def test_what_one_of_many_reads_first_is_only_noted() -> None:
    observer = OneLease(MANY)
    assert observer.read(7) is LeaseState.NOTED
    assert not observer.is_overdue("a", math.inf)


@pytest.mark.parametrize("observers", [FEW, MANY])
@pytest.mark.parametrize("token", [1, 2])
@pytest.mark.parametrize("is_silent", [False, True])
def test_who_did_not_look_for_a_while_gives_the_whole_time_again(observers: int, token: int, is_silent: bool) -> None:
    observer = OneLease(FEW)
    observer.read(1)
    if is_silent:
        observer.read(1)
    observer.known = observers
    assert observer.read(token, LAST + 0.001) is LeaseState.LIVE
    assert observer.rests == (SCAN if observers == FEW else INTERVAL)
    observer.read(token)
    assert not observer.is_overdue("a", observer.now + TTL)


def test_a_look_just_in_time_is_one() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    assert observer.read(1, LAST) is LeaseState.SILENT


@pytest.mark.parametrize(("left", "rests"), [(FEW, SCAN), (17, INTERVAL), (58, 5.4375), (256, 6.0)])
def test_where_fewer_are_left_it_looks_sooner(left: int, rests: float) -> None:
    observer = OneLease(256)
    observer.see("a", TTL, observer.now)
    observer.read(1)
    observer.read(2)
    observer.known = left
    assert observer.rests == rests


@pytest.mark.parametrize(("observers", "rests"), [(FEW, SCAN), (MANY, INTERVAL)])
def test_what_may_not_be_ended_gets_the_whole_time_again(observers: int, rests: float) -> None:
    observer = OneLease(observers)
    observer.read(1)
    while not observer.is_overdue("a", observer.now):
        observer.read(1, after=INTERVAL)
    observer.spare("a", TTL, observer.now)
    assert (observer.state("a"), observer.rests) == (LeaseState.LIVE, rests)
    spared = observer.now
    while not observer.is_overdue("a", observer.now):
        observer.read(1, after=INTERVAL)
    assert spared + TTL < observer.now <= spared + TTL + INTERVAL


def test_what_has_ended_stays_so() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    observer.end("a")
    assert observer.read(2) is LeaseState.ENDED
    assert observer.read(2) is LeaseState.ENDED
    assert not observer.is_overdue("a", math.inf)


class TestRest:
    def test_it_lasts_until_the_first_time(self) -> None:
        observer = OneLease(FEW)
        observer.observe("a", 1, TTL, 1000.0)
        observer.observe("b", 1, TTL, 1000.25)
        assert observer.rest(["a", "b"], 1000.5) == 0.25
        assert observer.rest(["b"], 1000.5) == 0.5

    def test_what_is_unseen_or_has_ended_does_not_count(self) -> None:
        observer = OneLease(FEW)
        observer.observe("a", 1, TTL, 1000.0)
        observer.end("a")
        assert observer.rest(["a", "b"], 1000.5) == SCAN

    @pytest.mark.parametrize(("now", "rests"), [(1000.7, 0.1), (1000.75, 0.1), (1000.76, SCAN)])
    def test_it_is_neither_none_nor_for_what_is_over(self, now: float, rests: float) -> None:
        observer = OneLease(FEW)
        observer.observe("a", 1, TTL, 1000.0)
        assert observer.rest(["a"], now) == rests
