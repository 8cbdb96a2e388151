"""What Kubernetes and what stands on it set in a pod. What is only a label comes by the downward API, under the names
that our manifests give it."""

from typing import Final

from . import readers
from .facts import SET, Fact, Platform, of

_INDEX: Final = of("JOB_COMPLETION_INDEX", read=readers.count)

INDEXED_JOB: Final = Platform(
    name="Kubernetes (indexed Job)",
    family="Kubernetes",
    tells={"JOB_COMPLETION_INDEX": SET},
    # The pod's host name, which the kubelet sets, is the Job's name and the index.
    facts={
        Fact.JOB: (of("HOSTNAME", "JOB_COMPLETION_INDEX", read=readers.without_index),),
        Fact.NODE_RANK: (_INDEX,),
    },
    seen="kubernetes.io, Jobs: completion mode (2026-11-25)",
)

JOB_SET: Final = Platform(
    name="Kubernetes (JobSet)",
    family="Kubernetes",
    tells={"JOBSET_NAME": SET, "JOB_COMPLETION_INDEX": SET},
    facts={
        Fact.JOB: (of("JOBSET_UID"), of("JOBSET_NAME")),
        Fact.NODE_RANK: (_INDEX,),
        Fact.FIRST_HOST: (of("JOBSET_NAME", "JOBSET_REPLICATED_JOB_NAME", read=readers.first_pod),),
        Fact.ATTEMPT: (of("JOBSET_RESTART_ATTEMPT", read=readers.count),),
    },
    seen="kubernetes-sigs/jobset 08dfbdf, api/jobset/v1alpha2: labels and annotations (2026-11-25)",
)

STATEFUL_SET: Final = Platform(
    name="Kubernetes (StatefulSet)",
    family="Kubernetes",
    tells={"STATEFULSET_NAME": SET, "POD_INDEX": SET},
    facts={
        Fact.JOB: (of("STATEFULSET_NAME"),),
        Fact.NODE_RANK: (of("POD_INDEX", read=readers.count),),
        Fact.FIRST_HOST: (of("STATEFULSET_NAME", "STATEFULSET_SERVICE", read=readers.joined("-0.")),),
    },
    seen="kubernetes.io, StatefulSets: pod index label, stable network id (2026-11-25)",
)

LEADER_WORKER_SET: Final = Platform(
    name="Kubernetes (LeaderWorkerSet)",
    family="Kubernetes",
    tells={"LWS_LEADER_ADDRESS": SET, "LWS_GROUP_SIZE": SET},
    facts={
        Fact.JOB: (of("LWS_LEADER_ADDRESS", read=readers.first_label),),
        Fact.NODES: (of("LWS_GROUP_SIZE", read=readers.some),),
        Fact.NODE_RANK: (of("LWS_WORKER_INDEX", read=readers.count),),
        Fact.FIRST_HOST: (of("LWS_LEADER_ADDRESS"),),
    },
    seen="kubernetes-sigs/lws 060ab4d, labels, annotations and environment variables (2026-11-26)",
)

VOLCANO: Final = Platform(
    name="Volcano",
    family="Kubernetes",
    tells={"V[CK]_TASK_INDEX": SET},
    facts={
        Fact.JOB: (
            of("HOSTNAME", "VC_TASK_INDEX", "VC_.+_NUM", read=readers.job_of_one_task),
            of("HOSTNAME", "VC_TASK_INDEX", read=readers.without_index),
        ),
        Fact.NODE_RANK: (of("VC_TASK_INDEX", read=readers.count), of("VK_TASK_INDEX", read=readers.count)),
        Fact.NODES: (of("VC_.+_NUM", read=readers.of_one_task(readers.some)),),
        Fact.HOSTS: (of("VC_.+_HOSTS", read=readers.of_one_task(readers.words)),),
    },
    seen="volcano-sh/volcano, docs/user-guide: the plugins env and svc (2026-11-26)",
)

NODES_AS_RANKS: Final = Platform(
    name="Kubeflow v1 or PAI",
    tells={"MASTER_ADDR": SET, "MASTER_PORT": SET, "RANK": SET, "WORLD_SIZE": SET},
    # A launcher of processes counts these.
    unless={"LOCAL_RANK": "", "PET_NODE_RANK": ""},
    facts={
        Fact.NODES: (of("WORLD_SIZE", read=readers.some),),
        Fact.NODE_RANK: (of("RANK", read=readers.count),),
        Fact.PROCESSES: (of("NPROC_PER_NODE"), of("PET_NPROC_PER_NODE")),
        Fact.FIRST_HOST: (of("MASTER_ADDR"),),
    },
    seen="help.aliyun.com, PAI-DLC: built-in environment variables; kubeflow/training-operator v1 (2026-11-25)",
)
