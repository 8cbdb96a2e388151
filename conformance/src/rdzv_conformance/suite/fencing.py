"""The tokens of key-value backends: a client that has seen an older version of a key cannot write it."""

import pickle
from typing import Any, Final

import pytest
from rdzv_core.backend import ABSENT, ANY, STATE_KEY, Entry, Expect, KeyValueBackend, PutOutcome, PutResult
from rdzv_core.errors import RendezvousStateError

from .base import CALL, KEY, Conformance, refusal
from .register import foreign_tokens

_WRITES: Final = 300
_HOSTILE: Final = {
    "empty": b"",
    "a line": b"\n",
    "pickle": pickle.dumps(print),
    "not UTF-8": b"\xff\xfe\n",
    "deep": b"[" * 100_000 + b"\n",
    "no header": b"{}\n",
    "another schema": b'{"rdzv": 99, "writer": "x", "nonce": "x", "epoch": 1}\n',
    "other types": b'{"rdzv": 1, "writer": 1, "nonce": [], "epoch": "1"}\n',
    "epoch below one": b'{"rdzv": 1, "writer": "x", "nonce": "x", "epoch": -1}\n',
    "no payload": b'{"rdzv": 1, "writer": "x", "nonce": "x", "epoch": 1}',
}
"""What may stand in a service and was not written by rdzv, or not by this version of it."""


class FencingConformance(Conformance):
    """Conditional puts."""

    def test_put_if_absent_creates(self, client: KeyValueBackend) -> None:
        """With `ABSENT` a missing key is written; the answer is what a read then finds."""
        put = client.put(KEY, b"x", expect=ABSENT, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        assert put.entry == client.read(KEY, timeout=CALL), "the answer to an applied put is not what was written"
        assert put.entry is not None
        assert put.entry.value == b"x"

    @pytest.mark.parametrize("value", [b"x", b""], ids=["full", "empty"])
    def test_put_if_absent_never_overwrites(self, client: KeyValueBackend, value: bytes) -> None:
        """With `ABSENT` an existing key, even one with an empty value, is kept; the answer is the present entry."""
        there = _write(client, value)
        put = client.put(KEY, b"y", expect=ABSENT, timeout=CALL)
        assert put == PutResult(PutOutcome.CONFLICT, there), (
            "a create-if-absent overwrote, or does not tell what is there"
        )
        assert client.read(KEY, timeout=CALL) == there

    def test_put_with_the_current_token_writes(self, client: KeyValueBackend) -> None:
        """A token that a put answered or a read found opens the door once."""
        entry = _write(client, b"0")
        for number in range(1, 6):
            put = client.put(KEY, b"%d" % number, expect=entry.token, timeout=CALL)
            assert put.outcome is PutOutcome.APPLIED, "the current token was refused"
            assert put.entry is not None
            assert put.entry.token != entry.token, "the token did not change with the value"
            found = client.read(KEY, timeout=CALL)
            assert found == put.entry
            entry = found

    @pytest.mark.parametrize("wanted", [b"z", b"y"], ids=["other", "same"])
    def test_put_with_an_old_token_changes_nothing(self, client: KeyValueBackend, wanted: bytes) -> None:
        """A token of an earlier version loses, even if the value to write is the one that is there."""
        old = _write(client, b"x")
        there = _write(client, b"y")
        put = client.put(KEY, wanted, expect=old.token, timeout=CALL)
        assert put == PutResult(PutOutcome.CONFLICT, there), "an old token was accepted"
        assert client.read(KEY, timeout=CALL) == there

    def test_no_token_comes_back(self, client: KeyValueBackend) -> None:
        """Hundreds of writes later no version has the token of an earlier one: a counter of one byte is none."""
        tokens: list[Any] = []
        for number in range(_WRITES):
            entry = client.put(KEY, b"%d" % (number % 2), expect=ANY, timeout=CALL).entry
            assert entry is not None
            assert entry.token not in tokens, f"a token came back after {number} writes"
            tokens.append(entry.token)

    @foreign_tokens
    def test_put_with_a_foreign_token_changes_nothing(self, client: KeyValueBackend, token: Any) -> None:
        """A token that the backend did not make, of whatever type, matches neither a key nor its absence."""
        assert client.put(KEY, b"x", expect=token, timeout=CALL) == PutResult(PutOutcome.CONFLICT), (
            f"{token!r} created a key"
        )
        assert client.read(KEY, timeout=CALL) is None, f"{token!r} created a key"
        there = _write(client, b"x")
        assert client.put(KEY, b"y", expect=token, timeout=CALL) == PutResult(PutOutcome.CONFLICT, there), (
            f"{token!r} was accepted"
        )
        assert client.read(KEY, timeout=CALL) == there

    def test_put_with_the_token_of_another_key_changes_nothing(self, client: KeyValueBackend) -> None:
        """A token belongs to one key: versions that each key counts by itself cannot serve as tokens."""
        other = client.put("suite/other", b"x", expect=ABSENT, timeout=CALL).entry
        there = _write(client, b"x", ABSENT)
        assert other is not None
        put = client.put(KEY, b"y", expect=other.token, timeout=CALL)
        assert put == PutResult(PutOutcome.CONFLICT, there), "a token of another key was accepted"
        assert client.read(KEY, timeout=CALL) == there

    def test_token_of_a_deleted_key_is_dead(self, client: KeyValueBackend) -> None:
        """After a delete the token matches nothing: not the missing key, and not a new one with the same value."""
        old = _write(client, b"x", ABSENT)
        client.delete(KEY, timeout=CALL)
        assert client.put(KEY, b"y", expect=old.token, timeout=CALL) == PutResult(PutOutcome.CONFLICT), (
            "a deleted key came back"
        )
        assert client.read(KEY, timeout=CALL) is None, "a token created a key"
        new = _write(client, b"x", ABSENT)
        put = client.put(KEY, b"y", expect=old.token, timeout=CALL)
        assert put == PutResult(PutOutcome.CONFLICT, new), "the token of a deleted key was accepted for its successor"
        assert client.read(KEY, timeout=CALL) == new

    @pytest.mark.parametrize("token", ["", b"", 0, ()], ids=["text", "bytes", "zero", "tuple"])
    def test_register_stays_empty_if_token_is_empty(self, client: KeyValueBackend, token: Any) -> None:
        """An empty token is a token: only None creates the state."""
        assert client.set_state(b"x", token) is None, f"an empty register took the token {token!r} for None"
        assert client.get_state() is None, f"the token {token!r} created a state"

    @pytest.mark.parametrize("data", _HOSTILE.values(), ids=_HOSTILE.keys())
    def test_corrupt_register_is_an_error(self, client: KeyValueBackend, data: bytes) -> None:
        """Bytes in the state's key that are not ours give `RendezvousStateError`, and nothing else."""
        client.put(STATE_KEY, data, expect=ANY, timeout=CALL)
        refusal(client.get_state, RendezvousStateError)
        refusal(lambda: client.set_state(b"x"), RendezvousStateError)


def _write(client: KeyValueBackend, value: bytes, expect: Expect = ANY) -> Entry:
    """Write the key, and read it."""
    assert client.put(KEY, value, expect=expect, timeout=CALL).outcome is PutOutcome.APPLIED
    entry = client.read(KEY, timeout=CALL)
    assert entry is not None, "an applied put wrote nothing"
    return entry
