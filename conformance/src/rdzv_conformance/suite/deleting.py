"""Deletes on a condition, for backends that have a `KeyValueBackend.delete_version` of their own."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import pytest
from rdzv.store import KeyValueStore
from rdzv_core.backend import ABSENT, ANY, Entry, KeyValueBackend, PutOutcome, Token
from rdzv_core.errors import RendezvousUnsupportedError

from ..meanwhile import holds, wait_for
from .base import CALL, KEY, ROOT, Clients, Conformance, Verdict, leave_out, refusal
from .calls import has_own, need_own
from .register import foreign_tokens

_RACES: Final = 50
_STEPS: Final = 20
_LONG: Final = timedelta(seconds=CALL)


class DeletingConformance(Conformance):
    """`KeyValueBackend.delete_version`."""

    @pytest.fixture
    def deleting(self, request: pytest.FixtureRequest, client: KeyValueBackend) -> None:
        """Leaves out the tests for what the backend inherits."""
        need_own(request.node, client, "delete_version")

    def test_service_without_conditional_deletes_says_so(
        self, request: pytest.FixtureRequest, client: KeyValueBackend
    ) -> None:
        """An inherited `delete_version` refuses at once, and removes nothing."""
        if has_own(client, "delete_version"):
            leave_out(request.node, Verdict.NOT_NEEDED, f"'{client.name}' deletes on a condition")
        there = _write(client)
        refusal(lambda: _delete(client, there.token), RendezvousUnsupportedError)
        assert client.read(KEY, timeout=CALL) == there

    @pytest.mark.usefixtures("deleting")
    def test_delete_with_the_current_token_removes_one_key(self, clients: Clients) -> None:
        """The key is gone, for who waits as well, and no key under it; it can be made anew, in another place."""
        client, other = clients(), clients()
        below = client.put(f"{KEY}/below", b"x", expect=ABSENT, timeout=CALL).entry
        old = _write(client)
        since = other.read_all(ROOT, timeout=CALL)
        assert _delete(client, old.token) is PutOutcome.APPLIED, "the current token was refused"
        gone = wait_for(other, ROOT, since, holds(KEY, None), "a key to be removed on a condition")
        assert gone.entries == {f"{KEY}/below": below}, "another key than the one was removed"
        assert _delete(client, old.token) is PutOutcome.CONFLICT, "a key was removed that does not exist"
        new = _write(client)
        assert new.order > old.order, "a new key has an old key's place"
        assert _delete(client, old.token) is PutOutcome.CONFLICT, "the token of a removed key was accepted"
        assert other.read(KEY, timeout=CALL) == new, "the token of a removed key removed its successor"
        assert _delete(other, new.token) is PutOutcome.APPLIED, "a token that another client made was refused"
        client.delete(f"{KEY}/below", timeout=CALL)
        assert client.read_all(ROOT, timeout=CALL).entries == {}

    @pytest.mark.usefixtures("deleting")
    def test_delete_of_an_earlier_version_changes_nothing(self, client: KeyValueBackend) -> None:
        """So it is with the token of another key."""
        old, there = _write(client), _write(client)
        other = client.put("suite/other", b"x", expect=ABSENT, timeout=CALL).entry
        assert other is not None
        for token in (old.token, other.token):
            assert _delete(client, token) is PutOutcome.CONFLICT, "a token of another version was accepted"
            assert client.read(KEY, timeout=CALL) == there, "a delete whose condition does not hold removed a key"

    @foreign_tokens
    @pytest.mark.usefixtures("deleting")
    def test_delete_with_a_foreign_token_changes_nothing(self, client: KeyValueBackend, token: Any) -> None:
        """A token that the backend did not make matches neither a key nor its absence."""
        assert _delete(client, token) is PutOutcome.CONFLICT, f"{token!r} removed what is not there"
        there = _write(client)
        assert _delete(client, token) is PutOutcome.CONFLICT, f"{token!r} was accepted"
        assert client.read(KEY, timeout=CALL) == there

    @pytest.mark.usefixtures("deleting")
    def test_one_version_is_replaced_or_removed_once(self, clients: Clients) -> None:
        """Of two clients, one writes after a version that the other removes at the same time: one of them wins."""
        writer, remover = clients(), clients()
        with ThreadPoolExecutor(1) as pool:
            for _ in range(_RACES):
                token = _write(writer).token
                removed = pool.submit(_delete, remover, token)
                written = writer.put(KEY, b"y", expect=token, timeout=CALL).outcome
                ends = {removed.result(2 * CALL), written}
                assert ends == {PutOutcome.APPLIED, PutOutcome.CONFLICT}, (
                    f"a version was replaced ({written.value}), and removed as well ({removed.result().value})"
                )
                there = writer.read(KEY, timeout=CALL)
                assert (there is not None) == (written is PutOutcome.APPLIED), "a key holds what the loser left"

    @pytest.mark.usefixtures("deleting")
    def test_store_deleted_keys_leave_nothing(self, client: KeyValueBackend, clients: Clients) -> None:
        """What a process makes and deletes is gone from the service, however often it does so."""
        store, other = KeyValueStore(clients(), timeout=_LONG), KeyValueStore(clients(), timeout=_LONG)
        for step in range(_STEPS):
            store.set(f"{step}", "x")
            store.append(f"{step}", "y")
            assert other.get(f"{step}") == b"xy"
            assert store.delete_key(f"{step}")
            assert not other.check([f"{step}"])
        left = client.read_all("rounds", timeout=CALL).entries
        assert not left, f"of {_STEPS} deleted keys {len(left)} are still in the service"


def _delete(client: KeyValueBackend, token: Token) -> PutOutcome:
    return client.delete_version(KEY, token, timeout=CALL)


def _write(client: KeyValueBackend) -> Entry:
    entry = client.put(KEY, b"x", expect=ANY, timeout=CALL).entry
    assert entry is not None, "an applied put does not tell what it wrote"
    return entry
