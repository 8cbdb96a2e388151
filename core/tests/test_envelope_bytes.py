"""The bytes of an envelope: they come back as they were, and nothing else is believed."""

import json
from typing import Any

import pytest

from rdzv_core.envelope import NONCE_HISTORY, Envelope, OtherVersionError
from rdzv_core.errors import RendezvousStateError

FIRST = Envelope(b"\n\0 anything", "a", "0a1b2c")
SECOND = Envelope(b"", "b", "3d4e5f", 2, ("0a1b2c",), deleted=True)


@pytest.mark.parametrize("envelope", [FIRST, SECOND], ids=["first", "deleted"])
def test_envelope_comes_back_as_it_was(envelope: Envelope) -> None:
    assert Envelope.unpack(envelope.pack()) == envelope


def test_first_envelope_says_no_more_than_it_must() -> None:
    assert FIRST.pack() == b'{"rdzv":1,"writer":"a","nonce":"0a1b2c","epoch":1}\n\n\0 anything'


def test_successor_counts_on_and_remembers_so_many() -> None:
    written = [Envelope.wrap(b"", writer="a")]
    while len(written) < NONCE_HISTORY + 10:
        written.append(Envelope.wrap(b"", writer="a", previous=written[-1]))
    assert [one.epoch for one in written] == list(range(1, len(written) + 1))
    before = [one.nonce for one in reversed(written[:-1])]
    assert list(written[-1].recent_nonces) == [*before[: NONCE_HISTORY - 1], written[0].nonce], (
        "the first is never forgotten"
    )
    assert len(set(before)) == len(before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rdzv", 2),
        ("rdzv", None),
        ("writer", 1),
        ("writer", []),
        ("nonce", 1),
        ("past", ["0a1b2c", 1]),
        ("past", 1),
        ("epoch", 0),
        ("epoch", 1.5),
        ("epoch", True),
        ("epoch", "1"),
        ("deleted", 1),
        ("deleted", None),
    ],
)
def test_header_of_other_types_is_refused(field: str, value: Any) -> None:
    header, _, payload = SECOND.pack().partition(b"\n")
    fields = json.loads(header)
    assert field in fields
    with pytest.raises(RendezvousStateError):
        Envelope.unpack(json.dumps(fields | {field: value}).encode() + b"\n" + payload)


def test_another_version_of_the_header_is_named_whatever_stands_in_it() -> None:
    with pytest.raises(
        OtherVersionError, match=r"^A value in the service was written by .*\(schema 2, this one reads 1\)"
    ):
        Envelope.unpack(b'{"rdzv":2,"who":"a"}\n')
    with pytest.raises(RendezvousStateError, match="was not written by rdzv") as refused:
        Envelope.unpack(b'{"rdzv":2,"who":"a"}')
    assert type(refused.value) is RendezvousStateError


@pytest.mark.parametrize(
    ("field", "value"), [("epoch", 2**62), ("nonce", "a" * 256), ("writer", "a" * 256), ("past", ["a" * 256])]
)
def test_what_no_next_header_can_be_made_of_is_refused(field: str, value: object) -> None:
    header = {"rdzv": 1, "writer": "a" * 255, "nonce": "a" * 255, "epoch": 2**62 - 1, "past": ["a" * 255]}
    there = Envelope.unpack(json.dumps(header).encode() + b"\n")
    assert b"payload" in Envelope.wrap(b"payload", writer="a", previous=there).pack()
    with pytest.raises(RendezvousStateError, match="was not written by rdzv"):
        Envelope.unpack(json.dumps({**header, field: value}).encode() + b"\n")


def test_a_long_value_that_is_no_envelope_is_shown_in_short() -> None:
    with pytest.raises(RendezvousStateError, match="was not written by rdzv: b'xxx") as refused:
        Envelope.unpack(250_000 * b"x" + b"\xff")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"{}\n", b"\x80\x04\x95\n", FIRST.pack().partition(b"\n")[0]])
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        Envelope.unpack(data)


def test_successor_of_whatever_was_read_can_be_read() -> None:
    header, _, payload = SECOND.pack().partition(b"\n")
    largest = Envelope.unpack(json.dumps(json.loads(header) | {"epoch": 2**62 - 1}).encode() + b"\n" + payload)
    after = Envelope.wrap(b"", writer="a", previous=largest)
    assert Envelope.unpack(after.pack()) == after
