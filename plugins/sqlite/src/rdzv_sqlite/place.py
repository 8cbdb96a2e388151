"""Where the database is: the default file of each user, and what to say when a place cannot be used."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from rdzv.errors import RendezvousDeniedError, RendezvousError, RendezvousParameterError, RendezvousStateError

__all__ = ["check_content", "default_path", "explain", "make_default_folder"]

_SMALLEST_PAGE: Final = 512
_WAY_OUT: Final = "Give the path of a database file as the endpoint."


def default_path() -> str:
    """The file that is used when the user names none: one for all processes of a user that share a temp folder."""
    return os.path.join(tempfile.gettempdir(), f"rdzv-{os.getuid()}", "rdzv.db")


def make_default_folder() -> None:
    """Make the folder of `default_path`, for this user alone.

    Raises:
        RendezvousDeniedError: It exists, and others could read or replace what is in it.
    """
    folder = os.path.dirname(default_path())
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as error:
        raise RendezvousDeniedError(f"The folder '{folder}' cannot be made: {error}. {_WAY_OUT}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise RendezvousDeniedError(
            f"'{folder}' (owner {found.st_uid}, mode {stat.filemode(found.st_mode)}) is not a folder that only "
            f"this user ({os.getuid()}) can enter. {_WAY_OUT}"
        )


def check_content(path: str) -> None:
    """Refuse a file too short to be a database: SQLite would take it for a new one, and write over it.

    Raises:
        RendezvousStateError: It is such a file.
    """
    with suppress(OSError):
        if 0 < os.path.getsize(path) < _SMALLEST_PAGE:
            raise RendezvousStateError(f"'{path}' is no database. {_WAY_OUT}")


def explain(path: str) -> RendezvousError | None:
    """Why no database can be kept at `path`, if that is so and trying again is pointless."""
    folder = Path(path).parent
    if not folder.is_dir():
        return RendezvousParameterError(f"There is no folder '{folder}' for the database '{path}'. Make it first.")
    if os.path.isdir(path):
        return RendezvousParameterError(f"'{path}' is a folder. {_WAY_OUT}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return RendezvousDeniedError(
            f"This user ({os.getuid()}) may not write into the folder '{folder}' of the database '{path}'."
        )
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        return RendezvousDeniedError(f"This user ({os.getuid()}) may not read and write the database '{path}'.")
    return None
