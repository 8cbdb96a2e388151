"""The files of the processes' output, where torchrun has them: ``LOG_DIR/RUN_xxxx/attempt_N/LOCAL_RANK/stdout.log``.

N is the round. (torchrun's is the number of restarts, and what is there already it removes. But a new world costs no
restart: the files of the world before would be lost.)
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.text import printable

from .routes import Std

_ERROR: Final = "error.json"

_LONGEST: Final = 100
"""Bytes of the run id, at most, that stand in the name of its folder."""


class LogFiles:
    """The files of one node in one run.

    Attributes:
        folder: Where they all are, once there are any.
    """

    def __init__(self, base: str | None, run_id: str) -> None:
        """Make none yet.

        Args:
            base: The folder for all runs; None: a new one for temporary files.
            run_id: The run.
        """
        self.folder: Path | None = None
        self._base = base
        # One that other users choose leads to no other folder.
        name = run_id.replace("/", "_")[:_LONGEST]
        while len(os.fsencode(name)) > _LONGEST:
            name = name[:-1]
        self._prefix = f"{name}_"

    def of_round(self, number: int, processes: int) -> list[Path]:
        """Make the folder of each process in a round.

        Raises:
            OSError: It cannot be made.
        """
        if self.folder is None:
            base = self._base or tempfile.mkdtemp(prefix="rdzv_")
            os.makedirs(base, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=base)).absolute()
        folders = [self.folder / f"attempt_{number}" / str(local_rank) for local_rank in range(processes)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return folders


def file_of(folder: Path, stream: Std) -> Path:
    """The file of a stream, in the folder of its process."""
    return folder / stream.file


def variables_of(folder: Path) -> dict[str, str]:
    """What tells a program where torch is to leave the exception by which it fails."""
    return {"TORCHELASTIC_ERROR_FILE": str(folder / _ERROR)}


def check_base(base: str | None) -> None:
    """Refuse a folder for all runs in which nothing can be made.

    Raises:
        RendezvousParameterError: This is one.
    """
    if base in (None, os.devnull):
        return
    try:
        os.makedirs(base, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base):
            pass
    except OSError as error:
        raise RendezvousParameterError(
            f"--log-dir {printable(base)} cannot be used: {error.strerror}. It is a folder for the files of processes."
        ) from error
