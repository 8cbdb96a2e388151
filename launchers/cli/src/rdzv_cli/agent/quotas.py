"""The CPU quotas of a process's control groups: a container's limit is one (``docker --cpus``, ``limits.cpu``)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def cpu_quotas(mounts: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> list[float]:
    """The quota of each control group around this process that has one, in CPUs; none where it cannot be known.

    Python counts no quotas (`os.process_cpu_count` only the affinity).

    Args:
        mounts: Where the hierarchies of control groups are mounted.
        groups: Which ones this process is in, see cgroups(7).
    """
    quotas: list[float] = []
    with suppress(OSError, ValueError):
        for line in groups.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            for folder in _around(group):
                # One of version 2 has no controllers here. A mount may be named after several.
                for place in ("", "unified") if not controllers else (controllers, "cpu"):
                    quotas += _quota(mounts / place / folder)
    return quotas


def _around(group: str) -> Iterator[PurePosixPath]:
    """A group and those that it is in, without the slash at the front. In a container the mount begins further down."""
    path = PurePosixPath(group.lstrip("/"))
    yield from (path, *path.parents)


def _quota(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)  # "max" is no number
    with suppress(OSError, ValueError):
        if (microseconds := int((folder / "cpu.cfs_quota_us").read_text())) > 0:
            yield microseconds / int((folder / "cpu.cfs_period_us").read_text())
