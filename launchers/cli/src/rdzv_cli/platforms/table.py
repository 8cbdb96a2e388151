"""All platforms, in the order in which one may stand around the other: the innermost launcher first."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final

from rdzv_core.errors import RendezvousError
from rdzv_core.plugins import naming_package

from . import batch, clouds, kubernetes, mpi, slurm, torch
from .facts import Platform

GROUP: Final = "rdzv.platforms"
"""The entry points by which a site adds rows of its own; what they tell comes before what rdzv's tell."""

PLATFORMS: Final = (
    torch.CHILD,
    torch.TRAINER,
    torch.OPTIONS,
    mpi.OPEN_MPI_5,
    mpi.OPEN_MPI_4,
    mpi.HYDRA,
    mpi.PALS,
    mpi.JSRUN,
    batch.FLUX,
    slurm.INTERACTIVE,
    slurm.PTY,
    slurm.STEP,
    slurm.SALLOC,
    slurm.SCRIPT,
    batch.PBS_TASK,
    batch.PBS_TERMINAL,
    batch.PBS,
    batch.LSF_TERMINAL,
    batch.LSF,
    kubernetes.JOB_SET,
    kubernetes.LEADER_WORKER_SET,
    kubernetes.STATEFUL_SET,
    kubernetes.VOLCANO,
    kubernetes.INDEXED_JOB,
    kubernetes.NODES_AS_RANKS,
    clouds.AWS_BATCH,
    clouds.SAGEMAKER,
    clouds.SAGEMAKER_BARE,
    clouds.AZURE_ML,
    clouds.VERTEX_AI,
    clouds.SKYPILOT,
)


def installed_platforms() -> Iterator[Platform | RendezvousError]:
    """The rows that sites have added, or what is wrong with one."""
    for entry in entry_points(group=GROUP):
        try:
            with naming_package(entry):
                if not isinstance(found := entry.load(), Platform):
                    raise TypeError(f"it leads to {found!r}, which is no Platform")
                yield replace(found, comes_first=True)
        except RendezvousError as error:
            yield error


def platforms() -> tuple[Platform, ...]:
    """All rows.

    Raises:
        RendezvousError: One of a site's is broken.
    """
    added: list[Platform] = []
    for one in installed_platforms():
        if isinstance(one, RendezvousError):
            raise one
        added.append(one)
    return (*added, *PLATFORMS)
