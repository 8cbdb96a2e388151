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

    def overdue(self, now: float) -> bool:
        return self.is_overdue("a", self._leases["a"].token, now)

    @property
    def rests(self) -> float:
        """Seconds for which it does not look."""
        return self.next_looks("a")["a"] - self.now


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
        observer.see({"a": TTL}, observer.now)
    assert (observer.state("a"), observer.rests) == (LeaseState.LIVE, SCAN)
    assert observer.read(1 if is_read else ABSENT, SCAN) is LeaseState.SILENT
    for _ in range(19):
        assert observer.read(1 if is_read else ABSENT, SCAN) is LeaseState.SILENT
        assert not observer.overdue(observer.now)
    # The last moment is one of its life.
    assert observer.now == 1000.0 + TTL
    assert observer.overdue(observer.now + 0.001)


def test_what_is_seen_again_is_not_counted_anew() -> None:
    observer = OneLease(FEW)
    observer.see({"a": TTL}, observer.now)
    looks = observer.next_looks("a")
    observer.see({"a": TTL}, observer.now + 0.5)
    assert observer.next_looks("a") == looks


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
    observer.see({"a": TTL}, observer.now)
    assert observer.rests == MEAN / 4
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
    assert not observer.overdue(math.inf)


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
    assert not observer.overdue(observer.now + TTL)


def test_a_look_just_in_time_is_one() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    assert observer.read(1, LAST) is LeaseState.SILENT


@pytest.mark.parametrize(("left", "rests"), [(FEW, SCAN), (17, INTERVAL), (58, 5.4375), (256, 6.0)])
def test_where_fewer_are_left_it_looks_sooner(left: int, rests: float) -> None:
    observer = OneLease(256)
    observer.see({"a": TTL}, observer.now)
    observer.read(1)
    observer.read(2)
    observer.known = left
    assert observer.rests == rests


@pytest.mark.parametrize(("observers", "rests"), [(FEW, SCAN), (MANY, INTERVAL)])
def test_what_may_not_be_ended_gets_the_whole_time_again(observers: int, rests: float) -> None:
    observer = OneLease(observers)
    observer.read(1)
    while not observer.overdue(observer.now):
        observer.read(1, after=INTERVAL)
    observer.spare("a", TTL, observer.now)
    assert (observer.state("a"), observer.rests) == (LeaseState.LIVE, rests)
    spared = observer.now
    while not observer.overdue(observer.now):
        observer.read(1, after=INTERVAL)
    assert spared + TTL < observer.now <= spared + TTL + INTERVAL


def test_a_look_may_end_what_is_silent_until_the_next_one_is_due() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    while observer.now < 1000.0 + TTL - SCAN:
        assert not observer.may_end("a", TTL, observer.now)
        observer.read(1, after=min(SCAN, 1000.0 + TTL - SCAN - observer.now))
    assert observer.may_end("a", TTL, observer.now)
    observer.read(2)
    assert not observer.may_end("a", TTL, observer.now)


@pytest.mark.parametrize("observers", [FEW, MANY])
def test_of_many_another_may_have_ended_what_is_silent(observers: int) -> None:
    observer = OneLease(observers)
    observer.read()
    assert observer.read(1) is LeaseState.LIVE
    assert not observer.may_end("a", TTL, observer.now)
    assert observer.read(1, after=SCAN) is LeaseState.SILENT
    assert observer.may_end("a", TTL, observer.now) is (observers == MANY)


@pytest.mark.parametrize("observers", [FEW, MANY])
def test_a_look_ends_nothing_that_was_not_looked_at_for_a_while(observers: int) -> None:
    observer = OneLease(observers)
    observer.see({"a": TTL}, observer.now)
    assert not observer.may_end("a", TTL, observer.now)
    assert not observer.may_end("a", TTL, observer.now + TTL)


@pytest.mark.parametrize("observers", [FEW, MANY])
def test_a_short_lease_may_end_whenever_it_was_looked_at(observers: int) -> None:
    observer = OneLease(observers)
    observer.see({"a": SCAN}, observer.now)
    assert observer.may_end("a", SCAN, observer.now)
    assert observer.may_end("a", SCAN, observer.now + TTL)


def test_a_heartbeat_that_came_while_an_older_answer_was_awaited_ends_nothing() -> None:
    """The newer heartbeat is in an answer that was asked for before the older one had come, so it tells nothing yet."""
    observer = OneLease(FEW)
    observer.read(5)
    assert observer.read(5, after=INTERVAL) is LeaseState.SILENT
    late = 1000.0 + TTL + 0.01
    observer.observe("a", 6, TTL, late, asked=observer.now - 0.01)
    assert observer.state("a") is LeaseState.SILENT
    assert not observer.is_overdue("a", 6, late)
    assert observer.is_overdue("a", 5, late)


def test_what_a_look_takes_is_as_good_as_gone() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    ends = observer.now + TTL
    observer.read(1, after=INTERVAL)
    observer.read(1, after=INTERVAL)
    assert observer.may_end("a", TTL, ends - SCAN - 1.0, took=1.0)
    assert not observer.may_end("a", TTL, ends - SCAN - 1.1, took=1.0)


def test_an_observer_rests_from_when_it_has_asked() -> None:
    observer = OneLease(FEW)
    for token in (1, 1, 2):
        observer.now += 0.5
        observer.observe("a", token, TTL, observer.now, observer.now - 0.3)
        assert observer.rests == pytest.approx(SCAN - 0.3)


def test_what_is_over_and_could_not_be_ended_is_no_hurry() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    for after, rests in ((5.0, SCAN), (5.0, SCAN), (4.5, 0.5), (0.5, 0.0), (0.1, SCAN), (1.0, SCAN)):
        assert observer.read(1, after=after) is LeaseState.SILENT
        assert observer.rests == pytest.approx(rests)


def test_what_another_look_has_ended_is_not_spared() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    observer.end("a")
    observer.spare("a", TTL, observer.now)
    assert observer.state("a") is LeaseState.ENDED


def test_what_has_ended_stays_so() -> None:
    observer = OneLease(FEW)
    observer.read(1)
    observer.end("a")
    assert observer.read(2) is LeaseState.ENDED
    assert observer.read(2) is LeaseState.ENDED
    assert not observer.overdue(math.inf)


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

    def test_with_a_short_interval_it_is_short_enough_for_the_next_look_to_be_in_time(self) -> None:
        observer = OneLease(FEW, interval=0.2)
        observer.observe("a", 1, TTL, 1000.0)
        assert observer.rest(["a"], 1000.19) == 0.05

    @pytest.mark.parametrize("now", [1000.7, 1000.75, 1000.76])
    def test_it_is_never_none(self, now: float) -> None:
        observer = OneLease(FEW)
        observer.observe("a", 1, TTL, 1000.0)
        assert observer.rest(["a"], now) == 0.1
