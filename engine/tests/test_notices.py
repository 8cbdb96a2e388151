"""What stands in the service about nodes beside their own records."""

import pytest
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError
from rdzv_core.keys import unescape

from rdzv.engine.codec import Record, decode
from rdzv.engine.notices import (
    NONE,
    DrainNotice,
    Failure,
    Quarantine,
    drain_key,
    drain_notice,
    failure_key,
    first_drain,
    name_in_id,
    name_of,
    nodes_that_drain,
    pardon,
    quarantine_key,
    read_notices,
)
from rdzv.engine.rules import _natural

from .coroutines import Harness


@pytest.mark.parametrize(("there", "stands"), [(None, False), (1.0, True), (2.0, True), (2.5, False)])
def test_of_two_drains_the_one_stands_that_takes_no_longer(there: float | None, stands: bool) -> None:
    mine, harness = DrainNotice(2.0, "mine"), Harness()
    known = None if there is None else DrainNotice(there, "before")
    if known is not None:
        harness.put(drain_key("a.1"), known.encode())
    assert first_drain(mine, harness.client.read(drain_key("a.1"), harness.now)) == (known if stands else mine)


def test_a_drain_that_cannot_be_read_does_not_stand() -> None:
    mine, harness = DrainNotice(2.0, "mine"), Harness()
    harness.put(drain_key("a.1"), b"{}")
    assert first_drain(mine, harness.client.read(drain_key("a.1"), harness.now)) is mine


def test_a_pardon_is_a_quarantine_that_is_over_and_counts_for_none() -> None:
    assert pardon(7, "me") == Quarantine(0, 7, 0.0, "pardoned by me", over=True)


def test_notices_are_found_by_what_they_are_about() -> None:
    harness = Harness()
    assert read_notices(harness.client.read_all("control", harness.now)) == NONE
    drain, failure, quarantine = DrainNotice(2.5, "spot"), Failure("a.1", "exit 1", True), Quarantine(1, 7, 60.0, "bad")
    harness.put(drain_key("a.1"), drain.encode())
    harness.put(failure_key(7), failure.encode())
    harness.put(quarantine_key("a"), quarantine.encode())
    notices = read_notices(harness.client.read_all("control", harness.now))
    assert notices.drains == {"a.1": drain}
    assert notices.failures == {7: failure}
    assert notices.quarantines == {"a": quarantine}


@pytest.mark.parametrize("kind", ["drains", "failures", "quarantines"])
def test_one_kind_alone_is_found(kind: str) -> None:
    harness = Harness()
    keys: dict[str, tuple[str, Record]] = {
        "drains": (drain_key("a.1"), DrainNotice(1e9, "spot")),
        "failures": (failure_key(7), Failure("a.1", "exit 1", False)),
        "quarantines": (quarantine_key("a"), Quarantine(1, 7, 0.0, "bad")),
    }
    key, record = keys[kind]
    harness.put(key, record.encode())
    assert list(getattr(read_notices(harness.client.read_all("control", harness.now)), kind).values()) == [record]


def test_what_cannot_be_read_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.put(drain_key("a.1"), b"{}")
    harness.put(failure_key(7), b"nonsense")
    harness.put("control/failures/last", Failure("a.1", "", False).encode())
    harness.put(drain_key("b.1"), b"", deleted=True)
    assert read_notices(harness.client.read_all("control", harness.now)) == NONE
    ignored = [message.partition(": ")[0] for message in caplog.messages]
    assert ignored == [f"ignoring '{key}'" for key in (drain_key("a.1"), failure_key(7))]


def test_keys_are_found_whether_they_can_be_read_or_not() -> None:
    harness = Harness()
    harness.put(drain_key("a.1"), b"{}")
    control = harness.client.read_all("control", harness.now)
    assert nodes_that_drain(control) == {"a.1"}


@pytest.mark.parametrize("seconds", ["-1.0", "1e10", "NaN", "Infinity", "3", '"3"'])
def test_seconds_that_no_clock_counts_are_refused(seconds: str) -> None:
    with pytest.raises(RendezvousStateError):
        decode(DrainNotice, f'{{"schema":3,"seconds":{seconds},"reason":""}}'.encode())
    with pytest.raises(RendezvousStateError):
        decode(Quarantine, f'{{"schema":3,"times":1,"round":1,"cooldown":{seconds},"reason":""}}'.encode())


@pytest.mark.parametrize(("node", "name"), [("host.a1b2", "host"), ("a.b.c1", "a.b"), ("host", "host")])
def test_name_is_what_stands_before_the_random_part(node: str, name: str) -> None:
    assert name_of(node) == name


@pytest.mark.parametrize("name", ["host-1.example", "x" * 32, "a/b"])
def test_short_name_stands_in_the_id(name: str) -> None:
    assert unescape(name_in_id(name)) == name


@pytest.mark.parametrize("name", ["my-long-training-job-name-worker-", "\u8282\u70b9" * 9, "x" * 253])
def test_long_names_stay_different_in_the_id(name: str) -> None:
    names = {name_in_id(f"{name}{number}") for number in range(20)}
    assert len(names) == 20
    for one in names:
        assert len(one) <= 32
        assert unescape(one)[:1] == name[:1]


def test_long_name_keeps_its_beginning_and_its_number() -> None:
    assert name_in_id("my-long-training-job-name-worker-12") == "my-long-training-jo~-12-36bc72eb"
    # All that is kept of it is the number.
    assert name_in_id(9 * "\u8282" + "\U0001f600123456789") == "~=F0=9F=98=80123456789-2ea502c4"


def test_long_name_may_end_with_digits_of_any_script() -> None:
    assert len(name_in_id("x" * 30 + "\u0661" * 6)) <= 32


@pytest.mark.parametrize("prefix", ["my-long-training-job-name-worker-", "a" * 20 + "7" * 20, "\u8282" * 40])
def test_long_names_are_in_the_order_of_the_numbers_at_their_ends(prefix: str) -> None:
    ids = [name_in_id(f"{prefix}-{number}") for number in range(1, 1000)]
    assert sorted(ids, key=_natural) == ids


@pytest.mark.parametrize("seconds", [-1.0, 1e10, float("inf"), float("nan")])
def test_no_clock_counts_every_number_of_seconds(seconds: float) -> None:
    with pytest.raises(RendezvousParameterError, match="from 0 to 1000000000"):
        drain_notice(seconds, "spot")


def test_reason_of_a_drain_is_bounded() -> None:
    for seconds in (0, 2, 1e9):
        assert drain_notice(seconds, "x" * 1000) == DrainNotice(float(seconds), "x" * 1000)
    with pytest.raises(RendezvousParameterError, match="at most 1,000 characters, and this one 1,001"):
        drain_notice(2, "x" * 1001)
