"""What a node counts down by its own clock."""

import math

import pytest

from rdzv.engine.countdown import Countdown
from rdzv.engine.notices import NONE, DrainNotice, Notices, Quarantine


def drains(**seconds: float) -> Notices:
    return Notices(drains={node: DrainNotice(each, "spot") for node, each in seconds.items()})


def quarantine(times: int, cooldown: float = 10.0, name: str = "host") -> Notices:
    return Notices(quarantines={name: Quarantine(times, 3 * times, cooldown, "it failed")})


PARDONED = Notices(quarantines={"host": Quarantine(0, 4, 0.0, "pardoned", over=True)})


@pytest.fixture
def mine() -> Countdown:
    return Countdown("host.1")


class TestDrains:
    def test_drain_counts_from_its_first_sight(self, mine: Countdown) -> None:
        mine.observe(drains(b=60.0), 100.0)
        mine.observe(drains(b=60.0, c=5.0), 110.0)
        assert mine.drains == {"b": (160.0, "spot"), "c": (115.0, "spot")}

    @pytest.mark.parametrize(("seconds", "moment"), [(10.0, 120.0), (90.0, 160.0)])
    def test_earliest_end_counts(self, mine: Countdown, seconds: float, moment: float) -> None:
        mine.observe(drains(b=60.0), 100.0)
        mine.observe(drains(b=seconds), 110.0)
        assert mine.drains == {"b": (moment, "spot")}

    def test_drain_that_is_over_is_forgotten(self, mine: Countdown) -> None:
        mine.observe(drains(b=60.0), 100.0)
        mine.observe(NONE, 110.0)
        assert mine.drains == {}

    def test_own_drain_counts_from_its_announcement(self, mine: Countdown) -> None:
        mine.announce(DrainNotice(60.0, "spot"), 100.0)
        mine.observe(Notices(drains={"host.1": DrainNotice(60.0, "spot")}), 105.0)
        assert mine.drains == {"host.1": (160.0, "spot")}
        # It goes, whatever became of the announcement.
        mine.observe(NONE, 110.0)
        assert mine.drains == {"host.1": (160.0, "spot")}

    @pytest.mark.parametrize(("seconds", "moment"), [(10.0, 115.0), (90.0, 160.0)])
    def test_earliest_end_of_an_own_drain_counts(self, mine: Countdown, seconds: float, moment: float) -> None:
        mine.announce(DrainNotice(60.0, "spot"), 100.0)
        mine.observe(Notices(drains={"host.1": DrainNotice(seconds, "the operator")}), 105.0)
        assert mine.goes_at() == moment
        mine.announce(DrainNotice(1.0, "now"), 106.0)
        assert mine.drains == {"host.1": (107.0, "now")}

    def test_of_two_that_end_together_the_first_says_why(self, mine: Countdown) -> None:
        mine.announce(DrainNotice(60.0, "spot"), 100.0)
        mine.announce(DrainNotice(50.0, "again"), 110.0)
        assert mine.drains == {"host.1": (160.0, "spot")}


class TestQuarantine:
    def test_it_is_waited_out_once(self, mine: Countdown) -> None:
        mine.observe(quarantine(1), 100.0)
        assert mine.cooled_at == 110.0
        assert not mine.serve(109.0)
        assert mine.serve(110.0)
        assert (mine.served, mine.cooled_at) == (3, math.inf)
        assert not mine.serve(111.0)
        mine.observe(quarantine(1), 112.0)
        assert not mine.serve(200.0)

    def test_it_is_not_begun_again(self, mine: Countdown) -> None:
        mine.observe(quarantine(1), 100.0)
        assert mine.serve(110.0)
        # For a moment the service shows something else.
        mine.observe(NONE, 111.0)
        mine.observe(quarantine(1), 112.0)
        assert (mine.quarantine, mine.cooled_at) == (None, math.inf)

    def test_other_news_do_not_begin_it_anew(self, mine: Countdown) -> None:
        mine.observe(quarantine(1), 100.0)
        mine.observe(quarantine(1), 105.0)
        assert mine.cooled_at == 110.0

    def test_further_one_begins_anew(self, mine: Countdown) -> None:
        mine.observe(quarantine(1), 100.0)
        mine.observe(quarantine(2, 20.0), 105.0)
        assert mine.cooled_at == 125.0
        assert mine.serve(125.0)
        assert mine.served == 6

    def test_first_one_after_a_pardon_begins(self, mine: Countdown) -> None:
        mine.observe(quarantine(1), 100.0)
        assert mine.serve(110.0)
        later = Notices(quarantines={"host": Quarantine(1, 9, 10.0, "it failed")})
        mine.observe(later, 200.0)
        assert mine.cooled_at == 210.0

    @pytest.mark.parametrize("after", [NONE, PARDONED])
    def test_pardon_ends_it(self, mine: Countdown, after: Notices) -> None:
        mine.observe(quarantine(1), 100.0)
        mine.observe(after, 101.0)
        assert (mine.quarantine, mine.cooled_at) == (None, math.inf)
        assert not mine.serve(200.0)

    def test_one_that_is_over_is_not_begun(self, mine: Countdown) -> None:
        mine.observe(Notices(quarantines={"host": Quarantine(1, 3, 10.0, "it failed", over=True)}), 100.0)
        assert (mine.quarantine, mine.cooled_at) == (None, math.inf)

    def test_it_is_one_of_the_name(self, mine: Countdown) -> None:
        mine.observe(quarantine(1, name="host.2"), 100.0)
        assert mine.quarantine is None

    def test_it_may_be_one_of_the_id(self, mine: Countdown) -> None:
        mine.observe(quarantine(1, name=mine.node), 100.0)
        assert mine.quarantine is not None

    def test_it_is_in_words_for_as_long_as_it_lasts(self, mine: Countdown) -> None:
        assert mine.quarantined(90.0) is None
        mine.observe(quarantine(1), 100.0)
        assert mine.quarantined(104.0) == "quarantined for another 6 s: it failed"
        assert mine.quarantined(111.0) == "quarantined for another 0 s: it failed"
        assert mine.serve(111.0)
        assert mine.quarantined(112.0) is None


class TestAlone:
    def test_it_waits_alone_from_when_it_knows(self, mine: Countdown) -> None:
        assert (mine.alone_for(90.0), mine.alone_until(60.0)) == (None, math.inf)
        mine.observe_alone(True, 100.0)
        mine.observe_alone(True, 130.0)
        assert (mine.alone_for(130.0), mine.alone_until(60.0)) == (30.0, 160.0)

    def test_it_counts_anew_when_it_was_not_alone_meanwhile(self, mine: Countdown) -> None:
        mine.observe_alone(True, 100.0)
        mine.observe_alone(False, 110.0)
        assert (mine.alone_for(110.0), mine.alone_until(60.0)) == (None, math.inf)
        mine.observe_alone(True, 130.0)
        assert mine.alone_until(60.0) == 190.0


class TestLastCall:
    def test_it_counts_from_the_first_sight_of_what_was_said_last(self, mine: Countdown) -> None:
        assert mine.forms_at == math.inf
        mine.observe_last_call(30.0, 100.0)
        mine.observe_last_call(30.0, 110.0)
        assert mine.forms_at == 130.0
        # Another node has come.
        mine.observe_last_call(7.5, 128.0)
        assert mine.forms_at == 135.5
        mine.observe_last_call(None, 136.0)
        assert mine.forms_at == math.inf
        mine.observe_last_call(30.0, 140.0)
        assert mine.forms_at == 170.0
