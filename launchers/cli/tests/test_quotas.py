"""CPU quotas of control groups: of both versions, in and out of a container, and of the kernel itself."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rdzv_cli.agent.quotas import cpu_quotas


@pytest.mark.parametrize(
    ("groups", "files", "quotas"),
    [
        pytest.param("0::/pod/main\n", {"pod/main/cpu.max": "150000 100000"}, [1.5], id="version 2"),
        pytest.param("0::/pod/main\n", {"pod/main/cpu.max": "max 100000"}, [], id="version 2, none"),
        pytest.param("0::/\n", {"cpu.max": "200000 100000"}, [2.0], id="version 2, a container"),
        pytest.param(
            "0::/pod/main\n",
            {"pod/main/cpu.max": "400000 100000", "pod/cpu.max": "300000 100000"},
            [4.0, 3.0],
            id="version 2, one in the other",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/1\n0::/docker/1\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            [0.5],
            id="version 1, a container whose mount begins further down",
        ),
        pytest.param(
            "4:cpu:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            [],
            id="version 1, none",
        ),
        pytest.param("nonsense\n", {}, [], id="a text that is none"),
    ],
)
def test_the_quotas_of_every_group_around(
    groups: str, files: dict[str, str], quotas: list[float], tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "mounts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounts" / name).write_text(f"{text}\n")
    assert cpu_quotas(tmp_path / "mounts", tmp_path / "groups") == quotas


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert cpu_quotas(tmp_path, tmp_path / "groups") == []


def test_the_kernels_own(tmp_path: Path) -> None:
    """A process in a group whose quota is half a CPU starts one."""
    group = _group_with_half_a_cpu()
    program = "from rdzv_cli.agent.devices import processes; print(processes('cpu'))"
    try:
        script = 'echo $$ > "$1/cgroup.procs"; exec "$2" -c "$3"'
        ran = subprocess.run(
            ["sh", "-c", script, "sh", str(group), sys.executable, program], check=True, capture_output=True, text=True
        )
    finally:
        group.rmdir()
    assert ran.stdout == "1\n"


def _group_with_half_a_cpu() -> Path:
    for top, limit in ((Path("/sys/fs/cgroup"), "cpu.max"), (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us")):
        group = top / f"rdzv-quota-{os.getpid()}"
        with suppress(OSError):
            # A folder that is no hierarchy of control groups has no such file, and may be one to write to.
            (top / "cgroup.procs").read_text()
            group.mkdir()
            try:
                (group / limit).write_text("50000 100000" if limit == "cpu.max" else "50000")
            except OSError:
                group.rmdir()
                raise
            return group
    pytest.skip("no control group can be made here: it takes root and a hierarchy that may be written")
