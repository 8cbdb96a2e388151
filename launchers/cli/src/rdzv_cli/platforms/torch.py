"""torchrun: its options as variables, which Kubeflow's Trainer sets, too; and what it tells its processes."""

from typing import Final

from . import readers
from .facts import SET, Fact, Platform, of

_BACKENDS: Final = {"etcd": "etcd-v2", "static": None}


def backend(named: str) -> str | None:
    """The backend that one of torchrun's is here; None: none, as of static, which has no service."""
    return _BACKENDS.get(named, named.removeprefix("rdzv-"))


_OPTIONS: Final = {
    Fact.JOB: (of("PET_RDZV_ID"),),
    Fact.NODES: (of("PET_NNODES", read=readers.nodes),),
    Fact.PROCESSES: (of("PET_NPROC_PER_NODE"),),
    Fact.MAX_RESTARTS: (of("PET_MAX_RESTARTS"),),
    Fact.BACKEND: (of("PET_RDZV_BACKEND", read=backend),),
    Fact.ENDPOINT: (of("PET_RDZV_ENDPOINT"),),
}

_IGNORED: Final = {
    "PET_MASTER_PORT": "the program's own port comes with the world",
    "PET_RDZV_CONF": "it is for torchrun's backends: give --option, or RDZV_OPTIONS",
    "PET_STANDALONE": "give --standalone",
    "PET_LOCAL_ADDR": "give --local-addr, or RDZV_LOCAL_ADDR",
}

TRAINER: Final = Platform(
    name="Kubeflow Trainer",
    family="torchrun's variables",
    tells={"PET_NODE_RANK": SET, "PET_MASTER_ADDR": SET},
    comes_first=True,
    facts={
        **_OPTIONS,
        Fact.JOB: (of("PET_RDZV_ID"), of("PET_MASTER_ADDR", read=readers.trainer_job)),
        Fact.NODE_RANK: (of("PET_NODE_RANK", read=readers.count),),
        Fact.FIRST_HOST: (of("PET_MASTER_ADDR"),),
    },
    ignored=_IGNORED,
    seen="kubeflow/trainer 8c0f505, pkg/runtime/framework/plugins/torch (2026-11-25)",
)

OPTIONS: Final = Platform(
    name="torchrun's variables",
    family="torchrun's variables",
    tells={"PET_(NNODES|NPROC_PER_NODE|MAX_RESTARTS|RDZV_(ID|BACKEND|ENDPOINT))": SET},
    comes_first=True,
    launches=False,
    facts=_OPTIONS,
    ignored=_IGNORED,
    seen="torch 2.15.0, torch/distributed/argparse_util.py and run.py (2026-11-25)",
)

CHILD: Final = Platform(
    name="torchrun",
    tells={"TORCHELASTIC_RUN_ID": SET, "GROUP_RANK": SET},
    facts={
        Fact.JOB: (of("TORCHELASTIC_RUN_ID"),),
        Fact.NODES: (of("GROUP_WORLD_SIZE", read=readers.some),),
        Fact.NODE_RANK: (of("GROUP_RANK", read=readers.count),),
        Fact.TASKS: (of("LOCAL_WORLD_SIZE", read=readers.some),),
        Fact.LOCAL_RANK: (of("LOCAL_RANK", read=readers.count),),
        Fact.FIRST_HOST: (of("MASTER_ADDR"),),
    },
    ignored={"TORCHELASTIC_RESTART_COUNT": "each agent of torchrun counts its own"},
    seen="torch 2.15.0, torch/distributed/elastic/agent/server/local_elastic_agent.py (2026-11-25)",
)
