"""A node's connection to its service: its states, and what the log says of them."""

import logging

import pytest
from rdzv_core.errors import RendezvousConnectionError

from rdzv.engine.connection import Connection, ConnectionState

from .test_node import Clock

AWAY = RendezvousConnectionError("it is away")
INTERVAL, TTL = 5.0, 15.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(clock: Clock) -> Connection:
    return Connection("run", "memory", clock, INTERVAL, TTL)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log since the last look."""
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return lines


def test_a_service_that_never_answered_is_lost(connection: Connection) -> None:
    assert connection.state is ConnectionState.LOST


def test_a_connection_goes_through_its_states(connection: Connection, clock: Clock) -> None:
    seen = []
    for seconds, error in [(0.0, None), (1.0, AWAY), (9.0, AWAY), (0.5, AWAY), (0.0, None)]:
        clock.now += seconds
        if error is None:
            connection.on_contact()
            connection.on_renewal(clock.now)
        else:
            connection.on_error(error)
        seen.append(connection.state)
    suspended = ConnectionState.SUSPENDED
    assert seen == [ConnectionState.CONNECTED, suspended, suspended, ConnectionState.LOST, ConnectionState.CONNECTED]


def test_a_round_trip_is_what_the_last_renewal_took(connection: Connection, clock: Clock) -> None:
    assert connection.round_trip == 0.0
    for seconds in (0.5, 0.25):
        sent, clock.now = clock.now, clock.now + seconds
        connection.on_renewal(sent)
        assert connection.round_trip == seconds


def test_a_silence_without_an_error_is_one_too(connection: Connection, clock: Clock) -> None:
    connection.on_renewal(clock.now)
    clock.now += 10.5
    assert connection.state is ConnectionState.LOST


def test_a_short_silence_is_not_worth_a_line(
    connection: Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        connection.on_error(AWAY)
        clock.now += 4.9
        connection.on_error(AWAY)
        connection.on_contact()
    assert said(caplog) == []


def test_the_time_that_a_call_took_without_success_is_silence(
    connection: Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    connection.on_contact()
    clock.now += 9.0
    # A keep-alive that was due for 4 s, and is given up a moment before its 5 s are over.
    connection.on_error(AWAY, 4.96)
    (line,) = said(caplog)
    assert "for 9 s, and is asked again and again; from 15 s on the others" in line
    connection.on_contact()
    said(caplog)
    clock.now += 3.0
    # A poll that the service held for longer than it has been silent.
    connection.on_error(AWAY, 8.0)
    assert said(caplog) == []


def test_a_long_silence_and_its_end_are_logged_once(
    connection: Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    others = "; from 15 s on the others may go on without this node"
    # What it has never answered it may have missed for longer than this node knows, and no other node waits for it.
    for silent, more in ((5, ""), (65, others)):
        connection.on_error(AWAY)
        clock.now += 5.0
        connection.on_error(AWAY)
        (line,) = said(caplog)
        assert line.startswith("The service of the rendezvous 'run' on backend 'memory' has answered no call")
        assert line.endswith(f"for {silent} s, and is asked again and again{more}: it is away")
        clock.now += 2.0
        connection.on_error(AWAY)
        assert said(caplog) == []
        connection.on_contact()
        (line,) = said(caplog)
        assert line.endswith(f"has answered a call again, after {silent + 2} s.")
        connection.on_contact()
        assert said(caplog) == []
        clock.now += 60.0


def test_whether_the_log_says_a_silence(connection: Connection, clock: Clock) -> None:
    told = []
    for seconds, call in [(0, connection.on_contact), (1, None), (6, None), (0, connection.on_contact)]:
        clock.now += seconds
        if call is None:
            connection.on_error(AWAY)
        else:
            call()
        told.append(connection.is_silence_told)
    assert told == [False, False, True, False]


def test_a_silence_is_counted_from_the_first_call_without_an_answer(connection: Connection, clock: Clock) -> None:
    clock.now += 7
    assert connection.silence() == 0
    connection.on_error(AWAY)
    clock.now += 2
    connection.on_error(AWAY)
    assert connection.silence() == 2
    connection.on_contact()
    clock.now += 1
    assert connection.silence() == 0
