"""A key-value backend: each key is a file."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from rdzv_core import (
    ABSENT,
    ANY,
    Capability,
    Entry,
    Expect,
    KeyValueBackend,
    Lease,
    PutOutcome,
    PutResult,
    RendezvousConnectionError,
    RendezvousParameterError,
    RendezvousStateError,
    Snapshot,
    Token,
    escape,
)

from .errors import translated
from .lock import locked

_PIECE: Final = 200
"""Characters of a key that make a file's name: file systems take 255 bytes."""


class DirectoryBackend(KeyValueBackend):
    """A rendezvous backend for processes that share a directory.

    Args:
        directory: It must be there, on a local file system.
        run_id: Which run.
        prefix: What the names of every run begin with.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    unsupported: ClassVar[Mapping[Capability, str]] = {
        Capability.WATCH: "A directory wakes no client: who waits looks again.",
        Capability.LEASE: "Files stay when their owner dies.",
        Capability.MULTI_ENDPOINT: "It is one, and fails with its file system.",
        Capability.DURABLE: "Values outlive processes, but no power failure.",
        Capability.TLS: "Nothing crosses a network.",
        Capability.AUTH: "The permissions of the directory decide.",
    }

    def __init__(
        self, directory: str, run_id: str, *, prefix: str = "rdzv"
    ) -> None:
        self._directory = Path(directory)
        # A run's id is any text, longer than a file's name too: the digest
        # tells runs apart, the rest is to read.
        run = escape(run_id)
        digest = hashlib.sha256(f"{prefix}/{run}".encode()).hexdigest()
        self._run = self._directory / f"{run[:100]},{digest}"
        self._keys = self._run / "keys"
        self._closed = False

    @property
    def name(self) -> str:
        return "directory"

    def read(self, key: str, *, timeout: float) -> Entry | None:
        with self._in_order():
            return self._load(key)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        deadline = time.monotonic() + timeout
        with self._in_order():
            found = self._collect(prefix)
            # No version ever comes back: what was found twice was so in
            # between, all of it at once.
            while found != (again := self._collect(prefix)):
                if time.monotonic() >= deadline:
                    raise RendezvousConnectionError(
                        f"'{prefix}' changed all the time, for {timeout:g} s."
                    )
                found = again
            return Snapshot(found)

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expect: Token | Expect,
        lease: Lease | None = None,
        timeout: float,
    ) -> PutResult:
        if lease is not None:
            raise RendezvousParameterError(
                f"The lease {lease!r} of '{key}' is not one of this backend's."
            )
        with self._locked(timeout):
            there = self._load(key)
            if expect is not ANY and expect != (
                ABSENT if there is None else there.token
            ):
                return PutResult(PutOutcome.CONFLICT, there)
            version = self._count()
            entry = Entry(
                value, str(version), version if there is None else there.order
            )
            written, file = (
                self._write(b"%d %d\n%s" % (version, entry.order, value)),
                self._file(key),
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                written.replace(file)
            except OSError:
                return PutResult(PutOutcome.UNKNOWN)
            return PutResult(PutOutcome.APPLIED, entry)

    def delete(self, prefix: str, *, timeout: float) -> None:
        with self._locked(timeout):
            for key in self._names(prefix):
                self._file(key).unlink()

    def delete_version(
        self, key: str, token: Token, *, timeout: float
    ) -> PutOutcome:
        with self._locked(timeout):
            there = self._load(key)
            if there is None or there.token != token:
                return PutOutcome.CONFLICT
            self._file(key).unlink()
            return PutOutcome.APPLIED

    def close(self) -> None:
        """See `KeyValueBackend`. No file is open between two calls."""
        self._closed = True

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Where every call happens: a closed client refuses.

        Only errors of rdzv's leave.
        """
        if self._closed:
            raise RendezvousConnectionError(
                f"This client of the directory '{self._directory}' is closed."
            )
        with translated(self._directory):
            if not self._directory.is_dir():
                # Making it would hide that a file system is not mounted.
                raise RendezvousConnectionError(
                    f"The directory '{self._directory}' is not there: "
                    "make or mount it."
                )
            yield

    @contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        """The same for what changes something: one at a time."""
        with self._in_order():
            self._keys.mkdir(parents=True, exist_ok=True)
            with locked(self._run / "lock", timeout, lambda: self._closed):
                yield

    def _file(self, key: str) -> Path:
        # Flat, because a key may stand beside keys under it. No key has a comma
        # or a plus: what is too long for the name of a file goes on in a
        # folder.
        name = key.replace("/", ",")
        return self._keys / "+/".join(
            name[start : start + _PIECE]
            for start in range(0, len(name), _PIECE)
        )

    def _names(self, prefix: str) -> list[str]:
        files = (
            Path(folder, name)
            for folder, _, names in os.walk(self._keys, onerror=_refuse)
            for name in names
        )
        keys = [
            str(file.relative_to(self._keys))
            .replace("+/", "")
            .replace(",", "/")
            for file in files
        ]
        return [
            key for key in keys if key == prefix or key.startswith(f"{prefix}/")
        ]

    def _collect(self, prefix: str) -> dict[str, Entry]:
        found = {key: self._load(key) for key in self._names(prefix)}
        return {key: entry for key, entry in found.items() if entry is not None}

    def _load(self, key: str) -> Entry | None:
        try:
            data = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        header, _, value = data.partition(b"\n")
        try:
            version, order = map(int, header.split())
        except ValueError as error:
            raise RendezvousStateError(
                f"'{self._file(key)}' was not written by rdzv: {data[:80]!r}"
            ) from error
        # Text: the number 1 would equal a foreign True or 1.0.
        return Entry(value, str(version), order)

    def _write(self, data: bytes) -> Path:
        """Bytes in a file of its own, ready to replace another one.

        A process that dies while writing harms nothing.
        """
        new = self._run / "new"
        new.write_bytes(data)
        return new

    def _count(self) -> int:
        """A number that no version of a key has had, larger than all before."""
        file = self._run / "count"
        number = int(file.read_bytes()) + 1 if file.exists() else 1
        self._write(b"%d" % number).replace(file)
        return number


def _refuse(error: OSError) -> None:
    """What cannot be listed is no empty folder; one not there yet is."""
    if not isinstance(error, FileNotFoundError):
        raise error
