"""Creation order: the order in which nodes arrive."""

from rdzv_core.backend import ANY, KeyValueBackend

from .base import CALL, ROOT, Clients, Conformance, entry_of

_NAMES = ("m", "z", "a", "10", "9", "Z", "b")


class OrderConformance(Conformance):
    """`Entry.order`."""

    def test_order_is_that_of_creation(self, clients: Clients) -> None:
        """Of two keys the one created first has the smaller order: whatever their names and their creators."""
        one, other = clients(), clients()
        for number, name in enumerate(_NAMES):
            (one, other)[number % 2].put(f"suite/{name}", b"x", expect=ANY, timeout=CALL)
        assert _in_order(one) == [f"suite/{name}" for name in _NAMES], "creation order is wrong"
        assert _in_order(other) == _in_order(one), "two clients see two orders"

    def test_order_outlives_overwriting(self, client: KeyValueBackend) -> None:
        """Overwriting a key does not move it."""
        for name in (*_NAMES, *reversed(_NAMES)):
            client.put(f"suite/{name}", name.encode(), expect=ANY, timeout=CALL)
        assert _in_order(client) == [f"suite/{name}" for name in _NAMES], "overwriting changed the creation order"

    def test_order_begins_anew_after_delete(self, client: KeyValueBackend) -> None:
        """A key that was deleted and created again stands behind those that were there meanwhile."""
        for name in _NAMES:
            client.put(f"suite/{name}", b"x", expect=ANY, timeout=CALL)
        for name in _NAMES[:2]:
            client.delete(f"suite/{name}", timeout=CALL)
            client.put(f"suite/{name}", b"x", expect=ANY, timeout=CALL)
        again = [*_NAMES[2:], *_NAMES[:2]]
        assert _in_order(client) == [f"suite/{name}" for name in again], "a new key has an old key's place"

    def test_order_is_the_same_wherever_it_is_read(self, client: KeyValueBackend) -> None:
        """Put, read, list and wait tell one order."""
        before = client.read_all(ROOT, timeout=CALL)
        client.put("suite/a", b"1", expect=ANY, timeout=CALL)
        put = client.put("suite/a", b"2", expect=ANY, timeout=CALL).entry
        read = client.read("suite/a", timeout=CALL)
        listed = entry_of(client.read_all(ROOT, timeout=CALL), "suite/a")
        waited = entry_of(client.wait(ROOT, before, timeout=CALL), "suite/a")
        assert put is not None
        assert read is not None
        assert {put.order, read.order, listed.order, waited.order} == {read.order}


def _in_order(client: KeyValueBackend) -> list[str]:
    entries = client.read_all(ROOT, timeout=CALL).entries
    assert len({entry.order for entry in entries.values()}) == len(entries), "two keys have the same order"
    return sorted(entries, key=lambda name: entries[name].order)
