"""Reading, writing and deleting keys: values, names, prefixes, and the borders between runs."""

import random
import re
import secrets
from datetime import timedelta
from typing import Final

import pytest
from rdzv.store import KeyValueStore
from rdzv_core.backend import ABSENT, ANY, MAX_KEY, MAX_PAYLOAD, KeyValueBackend, PutOutcome, Snapshot
from rdzv_core.errors import RendezvousParameterError

from ..meanwhile import value_of
from .base import CALL, KEY, ROOT, Clients, Conformance, refusal
from .calls import at_once

_VALUES: Final = {
    "empty": b"",
    "zero byte": b"\0",
    "all bytes": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\xc3",
    "lines": b"\na\r\n\n",
    "like JSON": b'{"a": null}',
    "like a number": b"1e3",
    "leading zeros": b"007",
    "blanks": b" a  ",
    "text with two forms": "\ufeffe\u0301".encode(),
    "256 KiB and an envelope": random.Random(0).randbytes(MAX_PAYLOAD + 1024),  # noqa: S311 - no secret
}
_NAMES: Final = (
    "suite/a/b/c/d/e/f/g/h/i/j",
    "suite/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=~",
    "suite/A",
    "suite/a",
    "suite/.a",
    "suite/a.",
    "suite/a..b",
    "suite/=2F",
    "suite/=2E=2E",
    "suite/~",
    "suite/-",
    "suite/_",
    "suite/0",
    "suite/00",
    f"suite/{'x' * 200}",
)
_ODD_RUNS: Final = (
    ".",
    "..",
    "/",
    "//",
    "a/../b",
    " ",
    "\n",
    "\0",
    "%2F",
    "=2F",
    "*?[",
    "'\";--",
    "ü日本",
    "\U0001f600",
    "\udcff",  # a byte of a command line that is not UTF-8
    "".join(map(chr, range(128))),
)
_SIZES: Final = (1, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 65537)
"""Sizes at which a length needs another byte, or a page is full."""
_MANY: Final = 1100
"""More keys than services give at once, by default."""
_LONG: Final = "x" * 300
"""What run ids have in common that differ only in their ends, or in their beginnings."""


class KeysConformance(Conformance):
    """Keys."""

    def test_missing_key_is_none(self, client: KeyValueBackend) -> None:
        """Reading what is not there is no error."""
        assert client.read(KEY, timeout=CALL) is None
        assert client.read_all(ROOT, timeout=CALL).entries == {}

    @pytest.mark.parametrize("value", _VALUES.values(), ids=_VALUES.keys())
    def test_value_comes_back_as_it_was(self, clients: Clients, value: bytes) -> None:
        """Values are any bytes, from none to 256 KiB and rdzv's envelope; another client reads the same."""
        put = clients().put(KEY, value, expect=ANY, timeout=CALL)
        assert put.outcome is PutOutcome.APPLIED
        reader = clients()
        entry = reader.read(KEY, timeout=CALL)
        assert entry is not None, "the value is not there"
        # Compared outside of the assertions: under CI pytest would show the whole difference, for hours.
        intact = entry.value == value
        assert intact, "the value was changed on its way"
        agree = reader.read_all(ROOT, timeout=CALL).entries == {KEY: entry}
        assert agree, "the two ways of reading disagree"
        answered = put.entry == entry
        assert answered, "the answer to the put is not what was written"

    def test_values_of_every_size_come_back(self, client: KeyValueBackend) -> None:
        """Where a length needs one byte more, or a page is full, nothing is cut and nothing is added."""
        values = {f"suite/{size}": bytes(range(1, 256)) * (size // 255 + 1) for size in _SIZES}
        values = {name: value[: int(name.rpartition("/")[2])] for name, value in values.items()}
        for name, value in values.items():
            client.put(name, value, expect=ANY, timeout=CALL)
        found = _values(client.read_all(ROOT, timeout=CALL))
        sizes = {name: len(value) for name, value in found.items()}
        assert sizes == {name: len(value) for name, value in values.items()}, (
            "values have other sizes than were written"
        )
        intact = found == values
        assert intact, "a value was changed on its way"

    def test_too_large_a_value_is_refused_before_it_is_sent(self, client: KeyValueBackend) -> None:
        """What does not fit into 256 KiB is named as such, with its size, by the register and by the store."""
        client.close()  # whatever is sent now is another error
        too_large = bytes(MAX_PAYLOAD + 1)
        store = KeyValueStore(client, timeout=timedelta(seconds=CALL))
        for call in (lambda: client.set_state(too_large), lambda: store.set("key", too_large)):
            error = refusal(call, RendezvousParameterError)
            assert str(len(too_large)) in str(error), f"the error does not name the size: {error}"

    @pytest.mark.parametrize("segment", [MAX_KEY, 200], ids=["one segment", "several"])
    def test_longest_key_is_a_key(self, client: KeyValueBackend, segment: int) -> None:
        """A key of `MAX_KEY` characters is one as all others, and is not confused with one that ends differently."""
        piece = "x" * segment
        longest = "/".join([ROOT, *[piece] * (MAX_KEY // segment + 1)])[:MAX_KEY]
        names = [longest, f"{longest[:-1]}y", longest[:-2]]
        since = client.read_all(ROOT, timeout=CALL)
        for name in names:
            put = client.put(name, name.encode(), expect=ABSENT, timeout=CALL)
            assert put.outcome is PutOutcome.APPLIED, f"a key of {len(name)} characters is taken for another: {put}"
        for name in names:
            assert value_of(client.read(name, timeout=CALL)) == name.encode(), (
                f"a key of {len(name)} characters is lost"
            )
        assert _values(client.read_all(ROOT, timeout=CALL)) == {name: name.encode() for name in names}
        assert client.wait(ROOT, since, timeout=CALL).entries.keys() == set(names)
        client.delete(longest, timeout=CALL)
        assert client.read_all(ROOT, timeout=CALL).entries.keys() == set(names[1:]), (
            "deleting a long key deletes others"
        )

    def test_too_long_a_key_is_refused_before_it_is_sent(self, client: KeyValueBackend) -> None:
        """A store's key that makes more than `MAX_KEY` characters is named as such, with the limit, by every call."""
        client.close()  # whatever is sent now is another error
        store, name = KeyValueStore(client, timeout=timedelta(seconds=CALL)), "/" * (MAX_KEY // 3)
        for call in (lambda: store.set(name, b""), lambda: store.get(name), lambda: store.queue_push(name, b"")):
            error = refusal(call, RendezvousParameterError)
            assert str(MAX_KEY) in str(error), f"the error does not name the limit: {error}"

    def test_names_are_kept_apart(self, client: KeyValueBackend) -> None:
        """Every segment of the contract's alphabet is a name of its own, upper case and lower case too."""
        for name in _NAMES:
            client.put(name, name.encode(), expect=ANY, timeout=CALL)
        entries = client.read_all(ROOT, timeout=CALL).entries
        assert {name: entry.value for name, entry in entries.items()} == {name: name.encode() for name in _NAMES}
        for name in _NAMES:
            assert client.read(name, timeout=CALL) == entries[name]

    def test_prefix_is_a_path(self, client: KeyValueBackend) -> None:
        """At or under ``a`` are ``a`` and ``a/b``, never ``ab``: neither for reading nor for deleting."""
        inside = {"suite/a", "suite/a/b", "suite/a/b/c", "suite/a/0", "suite/a/~"}
        outside = {
            "suite/ab",
            "suite/a-b",
            "suite/a.b",
            "suite/a0",
            "suite/a~",
            "suite/a=2F",
            "suite/b/a",
            "suite/aa/b",
        }
        for name in inside | outside:
            client.put(name, b"x", expect=ANY, timeout=CALL)
        assert client.read_all("suite/a", timeout=CALL).entries.keys() == inside, "read_all misunderstands a prefix"
        assert client.read_all("suite/a/b", timeout=CALL).entries.keys() == {"suite/a/b", "suite/a/b/c"}
        client.delete("suite/a", timeout=CALL)
        assert client.read_all(ROOT, timeout=CALL).entries.keys() == outside, "delete misunderstands a prefix"

    @pytest.mark.parametrize("name", ["a_b", "a.b", "a-b", "a=2F", "a~b"])
    def test_prefix_is_no_pattern(self, client: KeyValueBackend, name: str) -> None:
        """No letter of a prefix stands for others, as ``_`` does in SQL's LIKE and ``.`` in regular expressions."""
        inside = {f"suite/{name}", f"suite/{name}/1"}
        pattern = re.sub(r"[^a-zA-Z0-9]", "x", name)
        outside = {
            f"suite/{other}" for other in (pattern, f"{pattern}/1", f"x{name}/1", f"{name}x/1", f"{name.upper()}/1")
        }
        for key in inside | outside:
            client.put(key, b"x", expect=ANY, timeout=CALL)
        assert client.read_all(f"suite/{name}", timeout=CALL).entries.keys() == inside, (
            "a prefix is taken for a pattern"
        )
        waited = client.wait(f"suite/{name}", Snapshot(), timeout=CALL)
        assert waited.entries.keys() == inside, "wait takes a prefix for a pattern"
        client.delete(f"suite/{name}", timeout=CALL)
        assert client.read_all(ROOT, timeout=CALL).entries.keys() == outside, "delete takes a prefix for a pattern"

    def test_many_keys_are_read_completely(self, client: KeyValueBackend) -> None:
        """A list is never partial."""
        names = {f"suite/{number}" for number in range(_MANY)}
        at_once("put", lambda name: client.put(name, name.encode(), expect=ANY, timeout=CALL), names, threads=16)
        entries = client.read_all(ROOT, timeout=CALL).entries
        assert entries.keys() == names, f"{len(names - entries.keys())} of {len(names)} keys are missing"
        assert all(entry.value == name.encode() for name, entry in entries.items()), "values were mixed up"
        client.delete(ROOT, timeout=CALL)
        assert client.read_all(ROOT, timeout=CALL).entries == {}, "delete left keys behind"

    def test_large_values_are_read_together(self, client: KeyValueBackend) -> None:
        """Sixteen values of 256 KiB under one prefix are one list, too."""
        names = [f"suite/{number}" for number in range(16)]
        for name in names:
            client.put(name, bytes(MAX_PAYLOAD), expect=ANY, timeout=CALL)
        entries = client.read_all(ROOT, timeout=CALL).entries
        assert sorted(entries) == sorted(names)
        assert {len(entry.value) for entry in entries.values()} == {MAX_PAYLOAD}

    def test_key_may_be_created_again_after_delete(self, client: KeyValueBackend) -> None:
        """Deleting is final and no obstacle; deleting nothing is fine."""
        client.delete(KEY, timeout=CALL)
        for value in (b"1", b"2"):
            client.put(KEY, value, expect=ANY, timeout=CALL)
            client.delete(KEY, timeout=CALL)
            assert client.read(KEY, timeout=CALL) is None, "a deleted key is still there"

    def test_reads_see_what_was_written_before(self, clients: Clients) -> None:
        """Reads are linearizable: what one client has seen confirmed, every other one reads."""
        writer, reader = clients(), clients()
        for number in range(50):
            client, other = (writer, reader) if number % 2 else (reader, writer)
            client.put(KEY, b"%d" % number, expect=ANY, timeout=CALL)
            assert value_of(other.read(KEY, timeout=CALL)) == b"%d" % number, "a stale value was read"
            assert _values(other.read_all(ROOT, timeout=CALL)) == {KEY: b"%d" % number}, "a stale list was read"

    def test_one_client_serves_many_threads(self, client: KeyValueBackend) -> None:
        """Threads that share a client get the answers to their own questions."""

        def work(thread: int) -> None:
            name = f"suite/{thread}"
            for number in range(20):
                value = b"%d of %d" % (number, thread)
                assert client.put(name, value, expect=ANY, timeout=CALL).outcome is PutOutcome.APPLIED
                assert value_of(client.read(name, timeout=CALL)) == value, (
                    "a thread got the answer to another one's question"
                )

        at_once("put or read", work, range(16), threads=16)

    @pytest.mark.parametrize("run", _ODD_RUNS, ids=ascii)
    def test_run_id_may_be_any_text(self, clients: Clients, run: str) -> None:
        """A run's id is any text; what the service makes of a character does not concern the run."""
        name = f"suite/{secrets.token_hex(4)}"
        clients(run).put(name, b"x", expect=ANY, timeout=CALL)
        assert value_of(clients(run).read(name, timeout=CALL)) == b"x"
        assert _values(clients(run).read_all(name, timeout=CALL)) == {name: b"x"}

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("{}", "{}/suite"),
            ("{}/a", "{}=2Fa"),
            ("{}", "{} "),
            ("{}", "{}-"),
            ("x{}", "X{}"),
            ("{}/a", "{}/b"),
            ("{}xa", "{}_a"),
            ("{}xa", "{}.a"),
            pytest.param("{}\u00e9", "{}e\u0301", id="two forms of one letter"),
            pytest.param(f"{{}}{_LONG}a", f"{{}}{_LONG}b", id="long, end"),
            pytest.param(f"a{_LONG}{{}}", f"b{_LONG}{{}}", id="long, beginning"),
        ],
    )
    def test_runs_do_not_see_each_other(self, clients: Clients, run_id: str, one: str, other: str) -> None:
        """Two runs share nothing, however alike their ids are."""
        mine, foreign = clients(one.format(run_id)), clients(other.format(run_id))
        names = ("suite/key", "suite/suite/key")
        for name in names:
            mine.put(name, b"x", expect=ANY, timeout=CALL)
        assert foreign.read_all(ROOT, timeout=CALL).entries == {}, "a run sees another run's keys"
        assert all(foreign.read(name, timeout=CALL) is None for name in names), "a run reads another run's key"
        foreign.delete(ROOT, timeout=CALL)
        assert mine.read_all(ROOT, timeout=CALL).entries.keys() == set(names), "a run deleted another run's keys"


def _values(snapshot: Snapshot) -> dict[str, bytes]:
    return {name: entry.value for name, entry in snapshot.entries.items()}
