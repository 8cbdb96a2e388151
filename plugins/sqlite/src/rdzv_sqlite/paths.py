"""Where the database is: the default file of each user, and what to say when a place cannot be used."""

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from rdzv_core.endpoints import hide_login
from rdzv_core.errors import RendezvousDeniedError, RendezvousError, RendezvousParameterError, RendezvousStateError

_SMALLEST_PAGE: Final = 512
_ADDRESS: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://.*"  # a URL
    r"|[^/]*:[0-9]*"  # a port, and before it anything
    r"|[^/]*:[^/]*@[^/]*"  # a user and a password
    r"|([^/]*@)?(\[[0-9A-Fa-f:.]+(%[^/]*)?\]|[0-9]+(\.[0-9]+){3})"  # an IPv6 address in brackets, or an IPv4 address
    r"|[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f.]*(%[^/]*)?"  # an IPv6 address without brackets
)
"""What looks like the address of a server. Of what has a slash, that is a URL alone: all else is a path."""

LOGS: Final = ("-wal", "-shm")
"""What SQLite keeps beside a database while a process has it open, by the end of its name."""

_WAY_OUT: Final = "Give the path of a database file as the endpoint."


def default_path() -> str:
    """The file that is used when the user names none: one for all processes of a user that share a temp folder.

    Raises:
        RendezvousParameterError: There is no temp folder that this user may write into.
    """
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        raise RendezvousParameterError(f"There is no temp folder for a database: {error}. {_WAY_OUT}") from error
    return os.path.join(folder, f"rdzv-{os.getuid()}", "rdzv.db")


def is_default(path: str) -> bool:
    """Whether this is the file that is used when the user names none."""
    with suppress(RendezvousParameterError):
        return path == default_path()
    return False


def resolve(path: str) -> str:
    """The absolute path. SQLite follows links, too: all names of a file must lead to the same one."""
    return os.path.realpath(os.path.expanduser(path))


def describe(endpoint: str) -> str:
    """What an endpoint means, for people."""
    try:
        path = resolve(endpoint or default_path())
    except RendezvousParameterError:
        path = "none, for there is no temp folder"
    return f"{path} (a file: it serves the processes of this machine only)"


def check_endpoint(endpoint: str) -> None:
    """Refuse what was written with a server in mind: two machines would wait in two files for each other.

    Raises:
        RendezvousParameterError: It looks like the address of one, or of several.
    """
    # A slash makes a path of the whole, whatever its commas separate.
    items = [endpoint] if "/" in endpoint else endpoint.split(",")
    if any(_ADDRESS.fullmatch(item.strip()) for item in items):
        raise RendezvousParameterError(
            f"The endpoint '{hide_login(endpoint)}' looks like the address of a server; sqlite takes the path of a "
            f"file, for the processes of one machine. For several machines use another backend, such as etcd-v3. If "
            f"this is the name of a file, put ./ before it."
        )


def missing(path: str) -> RendezvousError:
    """What to say where a database is looked for, but not to be made."""
    return RendezvousParameterError(
        f"There is no database '{path}': no run has used it yet, or the endpoint names another file than `rdzv run`'s. "
        "The option create=true makes it."
    )


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


def check_access(path: str) -> None:
    """Refuse a database that this user may not write: SQLite would leave a log of this user's beside it.

    Raises:
        RendezvousDeniedError: It is one.
    """
    if os.path.isfile(path) and not os.access(path, os.R_OK | os.W_OK):
        raise RendezvousDeniedError(
            f"This user ({os.getuid()}) may not read and write the database '{path}', as every client of it must, also "
            f"one that only looks. Its owner ({os.stat(path).st_uid}) can allow it."
        )


def check_content(path: str) -> None:
    """Refuse a file that is none, or is too short to be a database: SQLite would wait in it, or take it for a new one.
    And one with several names: SQLite keeps a log beside each, and who uses another name is alone.

    Raises:
        RendezvousStateError: It is such a file.
    """
    with suppress(OSError):
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return
        if not stat.S_ISREG(found.st_mode) or 0 < found.st_size < _SMALLEST_PAGE:
            raise RendezvousStateError(f"'{path}' is no database. {_WAY_OUT}")
        if found.st_nlink > 1:
            raise RendezvousStateError(
                f"The database '{path}' has {found.st_nlink} names (hard links): clients that use different ones never "
                "meet. Remove all but one; a symbolic link is fine."
            )


def share(path: str, database: str) -> None:
    """Let a file beside a database serve the database's owner and group, as far as this user may."""
    served = os.stat(database)
    for owner in (served.st_uid, -1):
        with suppress(PermissionError):
            os.chown(path, owner, served.st_gid)
            break


def share_logs(database: str) -> None:
    """SQLite gives what it keeps beside a database the rights of that, but the group of this user: its others are in
    none of them, and would be locked out."""
    for suffix in LOGS:
        with suppress(OSError):
            share(f"{database}{suffix}", database)


def explain(path: str) -> RendezvousError | None:
    """Why no database can be kept at `path`, if that is so and trying again is pointless."""
    folder = Path(path).parent
    if not folder.is_dir():
        return RendezvousParameterError(f"There is no folder '{folder}' for the database '{path}'. Make it first.")
    if os.path.isdir(path):
        return RendezvousParameterError(f"'{path}' is a folder. {_WAY_OUT}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return RendezvousDeniedError(
            f"This user ({os.getuid()}) may not write into the folder '{folder}' of the database '{path}'. Its owner "
            f"({folder.stat().st_uid}) can allow it; or give the path of a database elsewhere as the endpoint."
        )
    for log in (f"{path}{suffix}" for suffix in LOGS):
        if os.path.exists(log) and not os.access(log, os.R_OK | os.W_OK):
            return RendezvousDeniedError(
                f"This user ({os.getuid()}) may not read and write '{log}', which SQLite keeps beside the database. "
                f"Have its owner ({os.stat(log).st_uid}) or root remove it when no process uses the database."
            )
    return None
