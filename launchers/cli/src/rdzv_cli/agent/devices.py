"""How many processes a node runs: a number, or one for each GPU or CPU as torchrun counts them."""

import argparse
import os
import shutil
import subprocess
from typing import Final

from rdzv_core.text import printable

from ..programs.probes import gpu_devices, listed_gpus
from ..values import MOST, is_count
from .quotas import cpu_quotas
from .tools import output_of

_PATIENCE: Final = 60.0
"""Seconds that ``nvidia-smi`` may take; without its daemon it initialises every GPU first."""


def processes(text: str) -> int:
    """The number that ``--nproc-per-node`` means, for argparse."""
    if text == "cpu":
        return _cpus()
    if text in ("gpu", "auto"):
        gpus = _gpus()
        if gpus == 0 and text == "gpu":
            raise argparse.ArgumentTypeError(
                "no NVIDIA GPU is found (by nvidia-smi, /dev/nvidia* and CUDA_VISIBLE_DEVICES); give a number, or cpu"
            )
        return gpus or _cpus()
    if not is_count(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"'{printable(text)}' is neither a number from 1 to {MOST} nor one of auto, gpu and cpu"
        )
    return int(text)


def _cpus() -> int:
    """The CPUs that this process may use, and that its container's quota is worth."""
    try:
        there = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not every system can tell.
        there = os.cpu_count() or 1
    return min([there, *(max(1, int(quota)) for quota in cpu_quotas())])


def _gpus() -> int:
    """The GPUs that a CUDA program started here would see, without loading CUDA."""
    there = _installed_gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    count = 0
    # As CUDA has it: the first item that names no GPU ends the list.
    for item in chosen.split(","):
        named = item.strip()
        if not (named.startswith(("GPU-", "MIG-")) or (is_count(named) and int(named) < there)):
            break
        count += 1
    return min(count, there)


def _installed_gpus() -> int:
    if (command := shutil.which("nvidia-smi")) is not None:
        try:
            listed = output_of([command, "-L"], _PATIENCE)
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            return listed_gpus(listed)
    # The driver is there without its tools, as in many containers.
    return gpu_devices()
