"""What the values of the store look like: the frame of one key, the page of several, the list of names.

Every write puts a nonce of its own into what it writes: `compare_set` does not say who won, but answers with
the present value, and no two writers write the same.
"""

import json
import secrets
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rdzv_core.backend import ABSENT, ANY, Entry, Expect, Token
from rdzv_core.errors import RendezvousStateError
from rdzv_transport import contains, number_of


def nonce() -> str:
    """A text that is made only once."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Version:
    """The token of an entry.

    Attributes:
        nonce: Of the write that made it.
        frame: Where one value is one key: what the store holds, which `compare_set` must find.
    """

    nonce: str
    frame: "Frame | None" = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Frame:
    """One write of one key, as the store holds it: a line that says which write it is, then the value.

    Attributes:
        nonce: Of this write.
        order: When the key was created, as the store counts.
        number: Of this write among those since then; the later of two writes of a key has the greater `place`.
        value: None: the key is removed. It has no line end then.
    """

    nonce: str
    order: int
    number: int
    value: bytes | None

    @property
    def place(self) -> tuple[int, int]:
        """By what two writes of one key are compared: the later one has the greater."""
        return self.order, self.number

    @property
    def head(self) -> bytes:
        """Which write it is."""
        return f"{self.nonce} {self.order} {self.number}".encode()

    @property
    def raw(self) -> bytes:
        """What the store holds."""
        return self.head if self.value is None else self.head + b"\n" + self.value

    @property
    def entry(self) -> Entry | None:
        """What a backend's caller gets; None: the key is removed."""
        return None if self.value is None else Entry(self.value, Version(self.nonce, self), self.order)

    def then(self, value: bytes | None) -> "Frame":
        """A write after this one: an overwrite, or the removal (None)."""
        return Frame(nonce(), self.order, self.number + 1, value)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read what the store holds for one key.

        Raises:
            RendezvousStateError: It is not ours.
        """
        line, newline, value = raw.partition(b"\n")
        try:
            written, order, number = line.decode("ascii").split(" ")
            return cls(written, number_of(order), number_of(number), value if newline else None)
        except ValueError as error:
            raise foreign(raw, error) from error


def frame_of(raw: bytes | None) -> Frame | None:
    """The frame in what the store holds for one key; None if that is nothing."""
    return Frame.parse(raw) if raw else None


def entry_of(frame: Frame | None) -> Entry | None:
    """The entry in a frame; None if there is none."""
    return None if frame is None else frame.entry


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
        version: How many pages came before this one; 0: none was written yet.
        wakeup: The wakeup key of the process that has put a value there last; empty: it had not begun to watch what is
            beside the page, or some values were removed since.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    created: int = 0
    version: int = 0
    wakeup: str = ""

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
            created, version = number_of(header["created"]), number_of(header["version"])
            wakeup = header["wakeup"].encode("ascii").decode()
            for path, (written, order, size) in header["keys"].items():
                value, rest = rest[:size], rest[size:]
                entries[path] = Entry(value, Version(str(written)), number_of(order))
                if len(value) != size:
                    raise ValueError("it is cut off")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise foreign(raw, error) from error
        return cls(entries, created, version, wakeup)

    def pack(self) -> bytes:
        """The bytes for the store."""
        keys = {path: (one.token.nonce, one.order, len(one.value)) for path, one in self.entries.items()}
        head = {"version": self.version, "created": self.created, "wakeup": self.wakeup, "keys": keys}
        line = json.dumps(head, separators=(",", ":")).encode()
        return b"\n".join((line, b"".join(one.value for one in self.entries.values())))

    def under(self, prefix: str) -> dict[str, Entry]:
        """What is on it at or under a prefix."""
        return {path: entry for path, entry in self.entries.items() if contains(prefix, path)}

    def written(self, path: str, value: bytes, wakeup: str) -> Self:
        """The next page: this one with one more write, by a process with that wakeup key."""
        there = self.entries.get(path)
        created = self.created + (there is None)
        entry = Entry(value, Version(nonce()), created if there is None else there.order)
        return type(self)({**self.entries, path: entry}, created, self.version + 1, wakeup)

    def without(self, paths: Container[str]) -> Self:
        """The next page: this one without some keys."""
        left = {path: entry for path, entry in self.entries.items() if path not in paths}
        return type(self)(left, self.created, self.version + 1)


_GARBAGE: Final = 32
"""How many lines of a list of names may be of no use before it is written anew."""


@dataclass(frozen=True, slots=True)
class Names:
    """A set of names, to which any client may add and from which any may remove, by appending a line.

    Attributes:
        names: Those that are in it, in the order in which they came.
        shorter: The same list without what is of no use, if that is worth the while.
    """

    names: tuple[str, ...]
    shorter: bytes | None

    @classmethod
    def parse(cls, raw: bytes | None) -> Self:
        """Read what the store holds; None is an empty list.

        Raises:
            RendezvousStateError: It is not ours.
        """
        names: dict[str, None] = {}
        try:
            lines = (raw or b"").decode("ascii").splitlines()
        except UnicodeDecodeError as error:
            raise foreign(raw or b"", error) from error
        for line in lines:
            if line.startswith("+"):
                names[line[1:]] = None
            elif line.startswith("-"):
                names.pop(line[1:], None)
            else:
                raise foreign(raw or b"", ValueError("neither + nor -"))
        long = len(lines) > 2 * len(names) + _GARBAGE
        return cls(tuple(names), b"".join(map(cls.plus, names)) if long else None)

    @staticmethod
    def plus(name: str) -> bytes:
        """What to append to add a name: a text without line ends."""
        return f"+{name}\n".encode()

    @staticmethod
    def minus(name: str) -> bytes:
        """What to append to remove a name that was seen there. It must not be added again."""
        return f"-{name}\n".encode()


def foreign(raw: bytes, error: Exception) -> RendezvousStateError:
    """The error for bytes that are not ours."""
    return RendezvousStateError(f"The store holds what was not written by rdzv-c10d ({error}): {raw[:80]!r}")
