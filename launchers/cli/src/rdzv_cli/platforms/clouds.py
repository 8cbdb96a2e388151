"""What clouds set on the machines of a job."""

from typing import Final

from . import readers
from .facts import SET, Fact, Platform, of

AWS_BATCH: Final = Platform(
    name="AWS Batch",
    tells={"AWS_BATCH_JOB_ID": SET, "AWS_BATCH_JOB_NODE_INDEX": SET},
    facts={
        # Each node's own id is this one with its index.
        Fact.JOB: (of("AWS_BATCH_JOB_ID", read=readers.before("#")),),
        Fact.NODES: (of("AWS_BATCH_JOB_NUM_NODES", read=readers.some),),
        Fact.NODE_RANK: (of("AWS_BATCH_JOB_NODE_INDEX", read=readers.count),),
        # The main node itself does not get its address.
        Fact.FIRST_HOST: (
            of("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
            of("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_INDEX", read=readers.this_host_if_first),
        ),
        Fact.ATTEMPT: (of("AWS_BATCH_JOB_ATTEMPT", read=readers.from_one),),
    },
    seen="docs.aws.amazon.com, Batch: environment variables, of multi-node parallel jobs, too (2026-11-26)",
)

SAGEMAKER: Final = Platform(
    name="SageMaker",
    tells={"SM_CURRENT_HOST": SET, "SM_HOSTS": SET},
    facts={
        Fact.JOB: (of("TRAINING_JOB_NAME"),),
        Fact.NODES: (of("SM_HOSTS", read=readers.number_of(readers.json_list)),),
        Fact.NODE_RANK: (of("SM_CURRENT_HOST", "SM_HOSTS", read=readers.place_in),),
        Fact.NODE_NAME: (of("SM_CURRENT_HOST"),),
        Fact.HOSTS: (of("SM_HOSTS", read=readers.json_list),),
    },
    ignored={"SM_NUM_GPUS": "it counts GPUs: --nproc-per-node gpu starts a process for each"},
    family="SageMaker",
    seen="aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md (2026-11-25)",
)

_RESOURCES: Final = "/opt/ml/input/config/resourceconfig.json"

SAGEMAKER_BARE: Final = Platform(
    name="SageMaker (no toolkit)",
    tells={"TRAINING_JOB_NAME": SET, "TRAINING_JOB_ARN": SET},
    facts={
        Fact.JOB: (of("TRAINING_JOB_NAME"),),
        Fact.NODES: (of(_RESOURCES, read=readers.number_of(readers.resource_hosts)),),
        Fact.NODE_RANK: (of(_RESOURCES, read=readers.resource_rank),),
        Fact.HOSTS: (of(_RESOURCES, read=readers.resource_hosts),),
    },
    family="SageMaker",
    seen="docs.aws.amazon.com, SageMaker: how it provides training information (2026-11-25)",
)

AZURE_ML: Final = Platform(
    name="Azure ML",
    tells={"AZUREML_EXPERIMENT_ID": SET},
    facts={
        Fact.JOB: (of("AZUREML_RUN_ID"),),
        Fact.FIRST_HOST: (of("AZ_BATCH_MASTER_NODE", read=readers.host_of),),
    },
    seen="microsoft/DeepSpeed edaa722, deepspeed/comm/comm.py: in_aml, patch_aml_env (2026-11-25)",
)

VERTEX_AI: Final = Platform(
    name="Vertex AI",
    tells={"CLUSTER_SPEC": SET, "CLOUD_ML_JOB_ID": SET},
    facts={
        Fact.JOB: (of("CLOUD_ML_JOB_ID"),),
        Fact.NODES: (of("CLUSTER_SPEC", read=readers.number_of(readers.tf_hosts)),),
        Fact.NODE_RANK: (of("CLUSTER_SPEC", read=readers.tf_rank),),
        Fact.HOSTS: (of("CLUSTER_SPEC", read=readers.tf_hosts),),
    },
    seen="cloud.google.com, Vertex AI: distributed training, the format of CLUSTER_SPEC (2026-11-25)",
)

SKYPILOT: Final = Platform(
    name="SkyPilot",
    tells={"SKYPILOT_NODE_RANK": SET, "SKYPILOT_NODE_IPS": SET},
    facts={
        Fact.JOB: (of("SKYPILOT_TASK_ID"),),
        Fact.NODES: (
            of("SKYPILOT_NUM_NODES", read=readers.some),
            of("SKYPILOT_NODE_IPS", read=readers.number_of(readers.words)),
        ),
        Fact.NODE_RANK: (of("SKYPILOT_NODE_RANK", read=readers.count),),
        Fact.HOSTS: (of("SKYPILOT_NODE_IPS", read=readers.words),),
    },
    ignored={"SKYPILOT_NUM_GPUS_PER_NODE": "it counts GPUs: --nproc-per-node gpu starts a process for each"},
    seen="docs.skypilot.co, distributed multi-node jobs (2026-11-26)",
)
