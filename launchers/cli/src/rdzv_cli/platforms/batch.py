"""Schedulers beside Slurm: PBS, LSF and Flux."""

from typing import Final

from . import readers
from .facts import IN_TERMINAL, SET, Fact, Platform, of

_PBS_NODES: Final = {
    Fact.NODES: (of("PBS_NODEFILE/file", read=readers.number_of(readers.words)),),
    Fact.HOSTS: (of("PBS_NODEFILE/file", read=readers.words),),
}
_PBS: Final = {Fact.JOB: (of("PBS_JOBID"),), **_PBS_NODES}
_PBS_ADVICE: Final = "put `pbsdsh -- ` or mpiexec with one process on each node in front"
_PBS_SEEN: Final = "Altair PBS Professional, User's Guide, the chapter on the job's environment (2026-11-25)"
_BY_SLURM: Final = {"SLURM_JOB_ID": "Slurm's plugin spank_pbs sets it"}

PBS_TASK: Final = Platform(
    name="PBS (pbsdsh)",
    family="PBS",
    # The script of the job is task 1.
    tells={"PBS_JOBID": SET, "PBS_NODENUM": SET, "PBS_TASKNUM": "[2-9]|[1-9][0-9]+"},
    unless=_BY_SLURM,
    facts={**_PBS, Fact.NODE_RANK: (of("PBS_NODENUM", read=readers.count),)},
    ignored={"PBS_TASKNUM": "it counts the tasks of the job, not those of this node"},
    seen=_PBS_SEEN,
)

PBS_TERMINAL: Final = Platform(
    name="PBS (terminal)",
    family="PBS",
    tells={"PBS_JOBID": SET, "PBS_ENVIRONMENT": "PBS_INTERACTIVE"},
    unless=_BY_SLURM,
    facts=_PBS_NODES,
    ignored={"PBS_JOBID": IN_TERMINAL},
    launches=False,
    advice=_PBS_ADVICE,
    seen="Altair PBS Professional, User's Guide, the chapter on the job's environment (2026-11-26)",
)
"""The shell of ``qsub -I``."""

PBS: Final = Platform(
    name="PBS (job script)",
    family="PBS",
    tells={"PBS_JOBID": SET},
    unless=_BY_SLURM,
    facts=_PBS,
    launches=False,
    advice=_PBS_ADVICE,
    seen=_PBS_SEEN,
)

_LSF_NODES: Final = {
    Fact.NODES: (of("LSB_MCPU_HOSTS", read=readers.number_of(readers.pairs)),),
    Fact.HOSTS: (of("LSB_MCPU_HOSTS", read=readers.pairs), of("LSB_DJOB_HOSTFILE/file", read=readers.words)),
}
_LSF_ADVICE: Final = "put jsrun, blaunch or mpirun with one process on each node in front"
_LSF_SEEN: Final = "IBM Spectrum LSF 10.1, Environment variables set for job execution (2026-11-26)"

LSF_TERMINAL: Final = Platform(
    name="LSF (terminal)",
    family="LSF",
    tells={"LSB_JOBID": SET, "LSB_INTERACTIVE": "Y"},
    facts=_LSF_NODES,
    ignored={"LSB_JOBID": IN_TERMINAL},
    launches=False,
    advice=_LSF_ADVICE,
    seen=_LSF_SEEN,
)
"""What ``bsub -I``, ``-Ip`` and ``-Is`` start."""

LSF: Final = Platform(
    name="LSF (job script)",
    family="LSF",
    tells={"LSB_JOBID": SET},
    facts={
        **_LSF_NODES,
        Fact.JOB: (of("LSB_JOBID", "LSB_JOBINDEX", read=readers.element), of("LSB_JOBID")),
        Fact.ARRAY: (of("LSB_JOBID", "LSB_JOBINDEX", read=readers.array),),
        Fact.ATTEMPT: (of("LSB_RESTART", read=readers.yes),),
    },
    launches=False,
    advice=_LSF_ADVICE,
    seen=_LSF_SEEN,
)

FLUX: Final = Platform(
    name="Flux",
    tells={"FLUX_JOB_ID": SET, "FLUX_TASK_RANK": SET},
    facts={
        Fact.JOB: (of("FLUX_JOB_ID"),),
        Fact.NODES: (of("FLUX_JOB_NNODES", read=readers.some),),
        Fact.TASKS: (of("FLUX_JOB_SIZE", "FLUX_JOB_NNODES", read=readers.quotient),),
        Fact.LOCAL_RANK: (of("FLUX_TASK_LOCAL_ID", read=readers.count),),
    },
    seen="flux-framework/flux-core 4a5e79f, src/shell/task.c (2026-11-25)",
)
