"""What stands in the service about nodes beside their own records."""

import pytest

from rdzv.engine.codec import Record, decode
from rdzv.engine.notices import (
    NONE,
    DrainNotice,
    Failure,
    Quarantine,
    drain_key,
    failure_key,
    name_of,
    quarantine_key,
    read_notices,
)
from rdzv.errors import RendezvousStateError

from .coroutines import Harness


def test_notices_are_found_by_what_they_are_about() -> None:
    harness = Harness()
    assert read_notices(harness.client.read_all("control", harness.now)) is NONE
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


def test_what_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.put(drain_key("a.1"), b"{}")
    harness.put(failure_key(7), b"nonsense")
    harness.put("control/failures/last", Failure("a.1", "", False).encode())
    harness.put(drain_key("b.1"), b"", deleted=True)
    assert read_notices(harness.client.read_all("control", harness.now)) == NONE
    assert caplog.text.count("ignoring") == 2


@pytest.mark.parametrize("seconds", ["-1.0", "1e10", "NaN", "Infinity", "3", '"3"'])
def test_seconds_that_no_clock_counts_are_refused(seconds: str) -> None:
    with pytest.raises(RendezvousStateError):
        decode(DrainNotice, f'{{"schema":3,"seconds":{seconds},"reason":""}}'.encode())
    with pytest.raises(RendezvousStateError):
        decode(Quarantine, f'{{"schema":3,"times":1,"round":1,"cooldown":{seconds},"reason":""}}'.encode())


@pytest.mark.parametrize(("node", "name"), [("host.a1b2", "host"), ("a.b.c1", "a.b"), ("host", "host")])
def test_name_is_what_stands_before_the_random_part(node: str, name: str) -> None:
    assert name_of(node) == name
