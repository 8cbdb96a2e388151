"""What the platform that has started this process knows of its job: Slurm, mpirun, Kubernetes and so on."""

from .detect import Found, Ignored, Taken, detect
from .facts import SET, Fact, Platform, Source, of
from .table import GROUP, PLATFORMS, installed_platforms, platforms

__all__ = [
    "GROUP",
    "PLATFORMS",
    "SET",
    "Fact",
    "Found",
    "Ignored",
    "Platform",
    "Source",
    "Taken",
    "detect",
    "installed_platforms",
    "of",
    "platforms",
]
