"""Errors of the system in words, with the limits that they met."""

import errno
import resource
from typing import Final

from rdzv_core.text import printable

REPLACED: Final = (errno.ENOENT, errno.ETXTBSY, errno.ESTALE)
"""Of a program that is just being replaced."""


def explained(error: OSError) -> str:
    """An error of the system in words, with the limit that it met, and the file that it is about."""
    where = f": {printable(str(error.filename))}" if error.filename else ""
    what = f"{error.strerror or error}{where}"
    limits = {
        errno.EAGAIN: f"ulimit -u is {_limit(resource.RLIMIT_NPROC)}, and a container has pids.max",
        errno.EMFILE: f"ulimit -n is {_limit(resource.RLIMIT_NOFILE)}",
        errno.ENFILE: "the whole machine has fs.file-max",
    }
    return f"{what} ({limits[error.errno]})" if error.errno in limits else what


def not_started(error: OSError) -> str:
    """Why a program could not be started, in words."""
    hints = {
        errno.ENOENT: "it, or the interpreter that its first line names",
        errno.ENOEXEC: "its first line names no interpreter, as #!/bin/sh does",
    }
    hint = f" ({hints[error.errno]})" if error.errno in hints else ""
    return f"{explained(error)}{hint}"


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
