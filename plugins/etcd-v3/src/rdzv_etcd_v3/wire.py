"""How keys, values and ranges look in etcd's JSON."""

import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_core.backend import Entry
from rdzv_transport import contains, number_of


def encode(data: bytes) -> str:
    """Bytes as etcd's JSON wants them: base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The keys of one run.

    Attributes:
        root: What stands before each of them in etcd, such as ``/rdzv/job-7/``.
    """

    root: str

    def key(self, name: str) -> dict[str, str]:
        """The fields of a request that select one key."""
        return {"key": self._encoded(name)}

    def under(self, prefix: str) -> dict[str, str]:
        """The fields that select every key at or under `prefix`, and a few more (see `contains`)."""
        # "0" follows "/". A range is contiguous: p-x and p.x lie between p and p/.
        return self.key(prefix) | {"range_end": self._encoded(prefix + "0")}

    def below(self, prefix: str) -> dict[str, str]:
        """The fields that select every key under `prefix`, without `prefix` itself."""
        return self.key(prefix + "/") | {"range_end": self._encoded(prefix + "0")}

    def _encoded(self, name: str) -> str:
        # Bytes that are no text are in the names of others' keys, which a purge removes.
        return encode((self.root + name).encode("utf-8", "surrogateescape"))

    def name(self, pair: Mapping[str, Any]) -> str:
        """The name of a key that etcd sent."""
        return binascii.a2b_base64(pair["key"]).decode("utf-8", "surrogateescape").removeprefix(self.root)

    def entries(self, pairs: Iterable[Mapping[str, Any]], prefix: str) -> dict[str, Entry]:
        """What etcd sent, by name; only what is at or under `prefix`."""
        found = {self.name(pair): read_entry(pair) for pair in pairs}
        return {name: entry for name, entry in found.items() if contains(prefix, name)}


def read_entry(pair: Mapping[str, Any]) -> Entry:
    """One key's value as etcd sent it; empty fields are missing there, and numbers are text."""
    return Entry(
        binascii.a2b_base64(pair.get("value", "")),
        token=number_of(pair["mod_revision"]),
        order=number_of(pair["create_revision"]),
    )
