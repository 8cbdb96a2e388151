"""Slurm: a step of srun, a script or shell without one, and a terminal."""

from typing import Final

from . import readers
from .facts import IN_TERMINAL, SET, Fact, Platform, of

_SEEN: Final = "Debian's Slurm 22.05.8, run on 2026-11-26; SchedMD/slurm 284c3b9, src/common/env.c"
_SRUN: Final = "put srun in front, which starts it on every node"

_JOB: Final = {
    Fact.CLUSTER: (of("SLURM_CLUSTER_NAME"),),
    # Each component of a heterogeneous job has an id of its own, and all have the first one's.
    Fact.JOB: (
        of("SLURM_JOB_ID_HET_GROUP_0"),
        of("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", read=readers.joined("_")),
        of("SLURM_JOB_ID"),
    ),
    Fact.ARRAY: (of("SLURM_ARRAY_JOB_ID"),),
    Fact.ARRAY_TASKS: (of("SLURM_ARRAY_TASK_COUNT", read=readers.some),),
    Fact.ATTEMPT: (of("SLURM_RESTART_COUNT", read=readers.count),),
    Fact.NODE_NAME: (of("SLURMD_NODENAME"),),
    Fact.ENDS: (of("SLURM_JOB_END_TIME", read=readers.unix_time),),
    Fact.GROUP: (of("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN", read=readers.group),),
}
_IGNORED: Final = {
    "SLURM_LAUNCH_NODE_IPADDR": "it is where srun was called, which may be a login node",
    "SLURM_JOB_SEGMENT_SIZE": "several segments may lie in one block: group_size is for you to give",
    "SLURM_GPUS_ON_NODE": "it counts GPUs, and a process may use several: --nproc-per-node gpu starts one for each",
}

STEP: Final = Platform(
    name="Slurm",
    family="Slurm",
    tells={"SLURM_JOB_ID": SET, "SLURM_STEP_ID": SET, "SLURM_PROCID": SET},
    facts={
        **_JOB,
        Fact.STEP: (of("SLURM_STEP_ID", read=readers.count),),
        Fact.NODES: (of("SLURM_STEP_NUM_NODES", read=readers.some),),
        Fact.NODE_RANK: (of("SLURM_NODEID", read=readers.count),),
        Fact.TASKS: (of("SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", read=readers.tasks_of),),
        Fact.LOCAL_RANK: (of("SLURM_LOCALID", read=readers.count),),
        Fact.HOSTS: (of("SLURM_STEP_NODELIST", read=readers.hosts),),
    },
    ignored=_IGNORED,
    seen=_SEEN,
)
"""What srun has started."""

SCRIPT: Final = Platform(
    name="Slurm (no srun)",
    family="Slurm",
    tells={"SLURM_JOB_ID": SET},
    facts={
        **_JOB,
        Fact.NODES: (of("SLURM_JOB_NUM_NODES", read=readers.some),),
        Fact.HOSTS: (of("SLURM_JOB_NODELIST", read=readers.hosts),),
    },
    ignored=_IGNORED,
    launches=False,
    advice=_SRUN,
    seen=_SEEN,
)
"""The script of a job, what mpirun starts beside it, and the shell of salloc."""


def _terminal(**tells: str) -> Platform:
    return Platform(
        name="Slurm (terminal)",
        family="Slurm",
        tells={"SLURM_JOB_ID": SET, **tells},
        facts={Fact.NODE_NAME: (of("SLURMD_NODENAME"),)},
        ignored={"SLURM_JOB_ID": IN_TERMINAL, "SLURM_STEP_NUM_NODES": IN_TERMINAL, "SLURM_JOB_NUM_NODES": IN_TERMINAL},
        launches=False,
        advice=_SRUN,
        seen=_SEEN,
    )


INTERACTIVE: Final = _terminal(SLURM_STEP_ID="4294967290")
"""The shell that salloc has started on the first node."""

PTY: Final = _terminal(SLURM_PTY_PORT=SET, SLURM_STEP_NUM_NODES="1")
"""The shell of ``srun --pty``; what srun starts from there has its variable, too, on more nodes than one."""

SALLOC: Final = _terminal(SLURM_JOB_NAME="interactive|bash|sh|zsh")
"""The shell of salloc where it stays on the login node: it is in no step."""
