"""Passwords and tokens, taken from a file or a variable.

An option declared as secret, such as ``password``, is also taken from the file that ``password_file`` names
and from the variable ``RDZV_PASSWORD``: neither can be seen in the list of processes.
"""

import copy
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from .errors import RendezvousParameterError
from .parameters import RendezvousParameters

__all__ = ["WITHHELD", "FileSecret", "file_option", "take_secrets", "variable", "with_secrets"]

logger = logging.getLogger(__name__)
# A file is read for each check of the options, and again when it has changed.
_warn_once: Final = cache(logger.warning)

WITHHELD: Final = "RDZV_WITHHELD"
"""Tells a program which secrets its agent has and did not pass on, for the error message."""

_MOST: Final = 65536
"""Bytes that a secret may have; what is longer is another file than the user meant."""


class FileSecret(str):
    """A secret as it was read from a file. The file may change: `again` is for a backend that follows it.

    Attributes:
        name: The option.
        path: The file.
    """

    name: str
    path: str

    def __new__(cls, name: str, path: str) -> "FileSecret":
        secret = super().__new__(cls, _read(name, path))
        secret.name, secret.path = name, path
        return secret

    def again(self) -> "FileSecret":
        """Read the file once more; raises `RendezvousParameterError` if that holds no secret now."""
        return FileSecret(self.name, self.path)


def variable(name: str) -> str:
    """The environment variable for an argument of `RendezvousParameters`, or for an option that is secret."""
    return f"RDZV_{name.upper()}"


def file_option(name: str) -> str:
    """The option for a file that holds the secret option `name`."""
    return f"{name}_file"


def take_secrets(
    given: Mapping[str, Any], names: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The options in `given`, with each secret itself in place of the file or variable that holds it.

    What is given as an option comes before the variable.

    Args:
        given: Options.
        names: Those that are secret.
        environ: The environment variables.

    Raises:
        RendezvousParameterError: A secret is given twice, or cannot be read.
    """
    taken = dict(given)
    for name in names:
        path = taken.pop(file_option(name), None)
        if path is not None:
            if taken.get(name) is not None:
                raise RendezvousParameterError(f"'{name}' and '{file_option(name)}' are both given: leave one out.")
            taken[name] = FileSecret(name, str(path))
        elif taken.get(name) is None:
            secret = environ.get(variable(name))
            taken[name] = _one_line(secret, f"The variable {variable(name)}") if secret else None
    return taken


def with_secrets(
    params: RendezvousParameters, names: Iterable[str], environ: Mapping[str, str] = os.environ
) -> RendezvousParameters:
    """A copy of the parameters that holds each secret itself; see `take_secrets`.

    Args:
        params: What the user gave.
        names: The options that are secret.
        environ: The environment variables.

    Raises:
        RendezvousParameterError: As `take_secrets`; or the agent that has started this process has withheld a secret of
            this very service. Another service may have the same option, and need none.
    """
    names = tuple(names)
    found = copy.copy(params)
    found.config = take_secrets(params.config, names, environ)
    if (params.backend, params.endpoint) == (environ.get("RDZV_BACKEND"), environ.get("RDZV_ENDPOINT", "")):
        withheld = environ.get(WITHHELD, "").split(",")
        for name in names:
            if name in withheld and found.config.get(name) is None:
                raise RendezvousParameterError(
                    f"The option '{name}' is missing here: `rdzv run` hands no secret to the program that it starts. "
                    f"Start it with {file_option(name)}=FILE, which this program reads, too, or with --pass-secrets."
                )
    return found


def _read(name: str, path: Any) -> str:
    where = f"The {file_option(name)} '{path}'"
    try:
        with open(str(path), "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(_MOST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RendezvousParameterError(f"{where} cannot be read: {reason}.") from error
    if len(content) > _MOST:
        raise RendezvousParameterError(f"{where} has more than {_MOST} bytes; it must hold the {name} alone.")
    if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
        _warn_once("%s can be read by every user of this machine. Take that away: chmod 600.", where)
    try:
        return _one_line(content.decode(), where)
    except UnicodeDecodeError as error:
        # Without a cause: it would show the secret.
        raise RendezvousParameterError(f"{where} is not UTF-8 from byte {error.start} on.") from None


def _one_line(text: str, where: str) -> str:
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise RendezvousParameterError(f"{where} is empty.")
    if "\n" in secret or "\r" in secret or "\0" in secret:
        raise RendezvousParameterError(f"{where} has more than one line; a secret is one.")
    return secret
