"""What the values of the store look like: the frame of one key, the page of several, the key index of names.

Every write puts a nonce of its own into what it writes: `compare_set` does not say who won, but answers with
the present value, and no two writers write the same.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rdzv_core.backend import ABSENT, ANY, Entry, Expect, Token
from rdzv_core.errors import RendezvousStateError
from rdzv_transport import number_of


def nonce() -> str:
    """A text that is made only once."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Version:
    """The token of an entry.

    Attributes:
        nonce: Of the write that made it.
        birth: Where one value is one key: the nonce of the write that created the key; an overwrite keeps it.
        raw: Likewise: what the store holds, which `compare_set` must find.
    """

    nonce: str
    birth: str = field(default="", compare=False)
    raw: bytes | None = field(default=None, compare=False, repr=False)


def frame(value: bytes, birth: str, order: int) -> Entry:
    """A new write of one key; its token has the bytes for the store: a line that says which write it is, then `value`.

    Args:
        value: The bytes.
        birth: See `Version`.
        order: When the key was created, as the store counts.
    """
    written = nonce()
    return Entry(value, Version(written, birth, f"{written} {birth} {order}\n".encode() + value), order)


def read_frame(raw: bytes) -> Entry:
    """Read what the store holds for one key.

    Raises:
        RendezvousStateError: It is not ours.
    """
    line, newline, value = raw.partition(b"\n")
    try:
        written, birth, order = line.decode("ascii").split(" ")
        if not newline:
            raise ValueError("no end of line")
        return Entry(value, Version(written, birth, raw), number_of(order))
    except ValueError as error:
        raise _foreign(raw, error) from error


def entry_of(raw: bytes | None) -> Entry | None:
    """The entry for what the store holds for one key; None if that is nothing, or emptied."""
    return read_frame(raw) if raw else None


def matches(there: Entry | None, expect: Token | Expect) -> bool:
    """Whether what a key holds is what the caller of a put expects."""
    if expect is ANY:
        return True
    if expect is ABSENT or there is None:
        return expect is ABSENT and there is None
    return isinstance(expect, Version) and bool(expect == there.token)


@dataclass(frozen=True, slots=True)
class Page:
    """Several keys in one value, written and read together.

    Attributes:
        entries: By path.
        created: How many keys were ever created here: their order.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    created: int = 0

    @classmethod
    def parse(cls, raw: bytes | None) -> Self:
        """Read what the store holds; None is a page that is not written yet.

        Raises:
            RendezvousStateError: It is not ours.
        """
        if raw is None:
            return cls()
        line, _, rest = raw.partition(b"\n")
        entries = {}
        try:
            header: Any = json.loads(line)
            created = number_of(header["created"])
            for path, (written, order, size) in header["keys"].items():
                value, rest = rest[:size], rest[size:]
                entries[path] = Entry(value, Version(str(written)), number_of(order))
                if len(value) != size:
                    raise ValueError("it is cut off")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise _foreign(raw, error) from error
        return cls(entries, created)

    def pack(self) -> bytes:
        """The bytes for the store."""
        keys = {path: (one.token.nonce, one.order, len(one.value)) for path, one in self.entries.items()}
        header = json.dumps({"created": self.created, "keys": keys}, separators=(",", ":"))
        return b"\n".join((header.encode(), b"".join(one.value for one in self.entries.values())))

    def written(self, path: str, value: bytes) -> Self:
        """This page with one more write."""
        there = self.entries.get(path)
        created = self.created + (there is None)
        entry = Entry(value, Version(nonce()), created if there is None else there.order)
        return type(self)({**self.entries, path: entry}, created)


_GARBAGE: Final = 32
"""How many lines of a key index may be of no use before it is written anew."""


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """A set of names, to which any client may add and from which any may remove, by appending a line.

    Attributes:
        names: Those that are in it, in the order in which they came.
        shorter: The same key index without what is of no use, if that is worth the while.
    """

    names: tuple[str, ...]
    shorter: bytes | None

    @classmethod
    def parse(cls, raw: bytes | None) -> Self:
        """Read what the store holds; None is an empty key index.

        Raises:
            RendezvousStateError: It is not ours.
        """
        names: dict[str, None] = {}
        try:
            lines = (raw or b"").decode("ascii").splitlines()
        except UnicodeDecodeError as error:
            raise _foreign(raw or b"", error) from error
        for line in lines:
            if line.startswith("+"):
                names[line[1:]] = None
            elif line.startswith("-"):
                names.pop(line[1:], None)
            else:
                raise _foreign(raw or b"", ValueError("neither + nor -"))
        long = len(lines) > 2 * len(names) + _GARBAGE
        return cls(tuple(names), "".join(map(cls.plus, names)).encode() if long else None)

    @staticmethod
    def plus(name: str) -> str:
        """What to append to add a name: a text without line ends."""
        return f"+{name}\n"

    @staticmethod
    def minus(name: str) -> str:
        """What to append to remove a name that was seen there. It must not be added again."""
        return f"-{name}\n"


def _foreign(raw: bytes, error: Exception) -> RendezvousStateError:
    return RendezvousStateError(f"The store holds what was not written by rdzv-c10d ({error}): {raw[:80]!r}")
