"""When a worker hangs."""

from rdzv.channel import Report

from rdzv_cli.agent.progress import HangDetection

TICK = 0.25


class Workers:
    """Workers that are looked at every `TICK` seconds."""

    def __init__(self, count: int, timeout: float | None = 10.0) -> None:
        self.detection = HangDetection(timeout)
        self.reports = [Report() for _ in range(count)]
        self.running = [True] * count
        self.now = 1000.0

    def progress(self, rank: int, step: int = 0) -> None:
        self.reports[rank] = Report(self.reports[rank].calls + 1, step)

    def hang_after(self, limit: float, at_a_time: float = TICK) -> tuple[float, int] | None:
        """After how many seconds one hangs, and which; None: none does so within `limit`."""
        began = self.now
        while self.now - began <= limit:
            if (rank := self.detection.look(self.reports, self.running, self.now)) is not None:
                return self.now - began, rank
            self.now += at_a_time
        return None


def test_a_program_that_reports_nothing_never_hangs() -> None:
    assert Workers(2).hang_after(1000) is None


def test_without_a_timeout_nothing_hangs() -> None:
    workers = Workers(1, None)
    workers.progress(0)
    assert workers.hang_after(1000) is None


def test_a_worker_hangs_once_its_last_call_is_the_timeout_ago() -> None:
    workers = Workers(2)
    for _ in range(5):
        workers.progress(0, 7)
        # The same step again is progress, too.
        assert workers.hang_after(9) is None
    assert workers.hang_after(100) == (10 - 9 - TICK, 0)


def test_of_several_the_one_that_is_behind_is_named() -> None:
    workers = Workers(3)
    for rank, step in enumerate((8, 7, 8)):
        workers.progress(rank, step)
    assert workers.hang_after(100) == (10, 1)


def test_a_worker_that_has_ended_does_not_hang() -> None:
    workers = Workers(1)
    workers.progress(0)
    workers.running = [False]
    assert workers.hang_after(100) is None


def test_time_in_which_the_agent_does_not_look_counts_for_none() -> None:
    workers = Workers(1)
    workers.progress(0)
    assert workers.hang_after(5) is None
    # It was stopped, as its workers may have been.
    workers.now += 3600
    workers.progress(0)
    assert workers.hang_after(8) is None
    workers.now += 3600
    assert workers.hang_after(0) is None
    # A machine that is so slow is no reason to wait for ever.
    assert workers.hang_after(3600, at_a_time=5) is not None


def test_the_step_of_a_node_is_that_of_the_worker_that_is_behind() -> None:
    workers = Workers(3, None)
    assert workers.detection.behind(workers.reports) == (None, 0.0)
    workers.progress(0, 7)
    workers.progress(1, -3)
    workers.hang_after(2)
    workers.progress(0, 8)
    workers.hang_after(1)
    # Also without a timeout; one that reports nothing counts for nothing, and a step below 0 is 0.
    step, age = workers.detection.behind(workers.reports)
    assert (step, age) == (0, 3.25)
    workers.progress(1, 8)
    assert workers.hang_after(0) is None
    step, age = workers.detection.behind(workers.reports)
    assert (step, age) == (8, 1.25)
