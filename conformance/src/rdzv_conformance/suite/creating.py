"""Many keys made at once, for backends that have a `KeyValueBackend.create_all` of their own."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from rdzv_core.backend import ABSENT, MAX_KEY, MAX_PAYLOAD, KeyValueBackend, PutOutcome
from rdzv_core.errors import RendezvousUnsupportedError

from ..meanwhile import holds, wait_for
from .base import CALL, ROOT, Clients, Conformance, Verdict, leave_out, refusal
from .calls import has_own, need_own

_RACES: Final = 20
_FOLDER: Final = f"{ROOT}/pages"
_LARGE: Final = 1024
"""Bytes that each value may have beside those that all share."""


class CreatingConformance(Conformance):
    """`KeyValueBackend.create_all`."""

    @pytest.fixture
    def creating(self, request: pytest.FixtureRequest, client: KeyValueBackend) -> None:
        """Leaves out the tests for what the backend inherits."""
        need_own(request.node, client, "create_all")

    def test_service_without_creations_at_once_says_so(
        self, request: pytest.FixtureRequest, client: KeyValueBackend
    ) -> None:
        """An inherited `create_all` refuses at once, and makes nothing."""
        if has_own(client, "create_all"):
            leave_out(request.node, Verdict.NOT_NEEDED, f"'{client.name}' makes many keys at once")
        assert client.creates_at_once == 1, "creates_at_once is declared, and create_all is inherited"
        refusal(lambda: client.create_all({f"{_FOLDER}/0": b"x"}, timeout=CALL), RendezvousUnsupportedError)
        assert client.read_all(ROOT, timeout=CALL).entries == {}

    @pytest.mark.usefixtures("creating")
    def test_keys_made_at_once_are_as_if_put(self, clients: Clients) -> None:
        """All are there, byte for byte, for who waits as well; each can be written and deleted as any other."""
        client, other = clients(), clients()
        assert client.creates_at_once > 1, "create_all is there, and creates_at_once says that it is not"
        before = client.put(f"{ROOT}/before", b"x", expect=ABSENT, timeout=CALL).entry
        values = {f"{_FOLDER}/{number}": bytes([number, 0, 255]) * number for number in range(client.creates_at_once)}
        since = other.read_all(ROOT, timeout=CALL)
        assert client.create_all(values, timeout=CALL) is PutOutcome.APPLIED, "no key is there, and none was made"
        last = list(values)[-1]
        news = wait_for(other, ROOT, since, holds(last, values[last]), "keys that were made at once")
        found = {key: entry for key, entry in news.entries.items() if key in values}
        assert {key: entry.value for key, entry in found.items()} == values, "not all keys are there as they were made"
        assert before is not None
        assert all(entry.order > before.order for entry in found.values()), "a new key has an older key's place"
        key, entry = next(iter(found.items()))
        assert client.read(key, timeout=CALL) == entry
        written = other.put(key, b"y", expect=entry.token, timeout=CALL)
        assert written.outcome is PutOutcome.APPLIED, "the token of a key that was made at once was refused"
        after = client.put(f"{ROOT}/after", b"x", expect=ABSENT, timeout=CALL).entry
        assert after is not None
        assert all(after.order > entry.order for entry in found.values()), "a key has a place after a newer one's"
        client.delete(_FOLDER, timeout=CALL)
        assert client.read_all(_FOLDER, timeout=CALL).entries == {}
        assert client.create_all(values, timeout=CALL) is PutOutcome.APPLIED, "deleted keys were not made anew"

    @pytest.mark.usefixtures("creating")
    @pytest.mark.parametrize("which", [0, -1], ids=["the first", "the last"])
    def test_where_one_key_is_there_none_is_made(self, client: KeyValueBackend, which: int) -> None:
        """And what is there stays as it was: the same values make no difference."""
        values = {f"{_FOLDER}/{number}": b"x" for number in range(client.creates_at_once)}
        there = list(values)[which]
        entry = client.put(there, b"x", expect=ABSENT, timeout=CALL).entry
        for _ in range(2):
            outcome = client.create_all(values, timeout=CALL)
            assert outcome is PutOutcome.CONFLICT, f"a key is there, and making it with others was {outcome.value}"
            assert client.read_all(ROOT, timeout=CALL).entries == {there: entry}, "some of the keys were made"

    @pytest.mark.usefixtures("creating")
    def test_of_two_that_make_the_same_key_one_wins(self, clients: Clients) -> None:
        """The other has made nothing."""
        one, other = clients(), clients()
        mine = {f"{_FOLDER}/{number}": b"mine" for number in (0, 1)}
        theirs = {f"{_FOLDER}/{number}": b"theirs" for number in (1, 2)}
        with ThreadPoolExecutor(1) as pool:
            for _ in range(_RACES):
                making = pool.submit(other.create_all, theirs, timeout=CALL)
                ends = one.create_all(mine, timeout=CALL), making.result(2 * CALL)
                assert set(ends) == {PutOutcome.APPLIED, PutOutcome.CONFLICT}, f"two have made one key: {ends}"
                found = {key: entry.value for key, entry in one.read_all(ROOT, timeout=CALL).entries.items()}
                assert found == (mine if ends[0] is PutOutcome.APPLIED else theirs), "the loser has made some keys"
                one.delete(ROOT, timeout=CALL)

    @pytest.mark.usefixtures("creating")
    def test_as_many_and_as_much_as_is_declared_is_taken(self, client: KeyValueBackend) -> None:
        """`creates_at_once` keys as long as they may be, with `MAX_PAYLOAD` bytes and 1024 more for each."""
        count = client.creates_at_once
        names = (f"{_FOLDER}/{number}." for number in range(count))
        large = bytes(range(256)) * (MAX_PAYLOAD // count // 256 + _LARGE // 256)
        values = {name.ljust(MAX_KEY, "k"): large for name in names}
        assert client.create_all(values, timeout=CALL) is PutOutcome.APPLIED, "what is declared was not taken"
        found = client.read_all(ROOT, timeout=CALL).entries
        assert {key: entry.value for key, entry in found.items()} == values, "not all keys are there as they were made"
