"""Values that stand in files, and are read again when the files change."""

import logging
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from rdzv_core.credentials import FileSecret
from rdzv_core.errors import RendezvousParameterError

logger = logging.getLogger(__name__)

_T = TypeVar("_T", covariant=True)
_U = TypeVar("_U")

_UNMADE: Final[Any] = object()


class Present(Generic[_T]):
    """A value that is made of files, and made anew when one of them has changed; a call gives the present one.

    It is made when the object is, and looked at by each call. What cannot be read, or cannot be used, leaves the last
    value in force, with one warning until it can. Where one of the files is no regular one, such as a pipe, all of them
    are read once.

    Attributes:
        files: The paths that are looked at; none: the value never changes.
    """

    def __init__(self, files: Iterable[str], make: Callable[[], _T], made: _T = _UNMADE) -> None:
        """Make the value, if it is not made yet.

        Args:
            files: The paths that it is made of.
            make: Makes it of all of them; raises `RendezvousParameterError` if it cannot.
            made: The value as it was made at some time; the first call looks whether it is still right.

        Raises:
            RendezvousParameterError: From `make`.
        """
        files = tuple(files)
        self.files = files if all(map(os.path.isfile, files)) else ()
        self._make = make
        self._warned = False
        # Taken before the files are read: one that changes meanwhile is read again.
        versions = self._versions() if made is _UNMADE else []
        # One object, without a lock, which a fork could leave held. Of two threads the slower may put back an older
        # value, with its older versions: the next call reads again.
        self._made = versions, make() if made is _UNMADE else made

    @staticmethod
    def fixed(value: _U) -> "Present[_U]":
        """A value that never changes."""
        return Present((), lambda: value)

    @staticmethod
    def secret(text: str) -> "Present[str]":
        """A secret by options: what its file holds, if it was taken from one."""
        return Present([text.path], text.again, text) if isinstance(text, FileSecret) else Present.fixed(text)

    def then(self, make: Callable[[_T], _U]) -> "Present[_U]":
        """What `make` makes of this value, whenever that changes; where it refuses, the last one stays in force."""
        return Present(self.files, lambda: make(self()))

    def __call__(self) -> _T:
        """The present value."""
        seen, value = self._made
        try:
            versions = self._versions()
            if versions != seen:
                value = self._make()
                self._made = versions, value
            self._warned = False
        except RendezvousParameterError as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s What was read before stays in force.", error)
        return value

    def _versions(self) -> list[tuple[int, ...]]:
        return [_version(path) for path in self.files]


def _version(path: str) -> tuple[int, ...]:
    """What differs once a file was written to, or another one has taken its place."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise RendezvousParameterError(f"'{path}' cannot be read any more: {error.strerror}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise RendezvousParameterError(f"'{path}' is no regular file any more.")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
