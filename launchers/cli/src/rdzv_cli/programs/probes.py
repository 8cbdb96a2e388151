"""The checks that `rdzv run` brings with it.

They are a program, so that one which hangs can be killed: its arguments are the kind of check and what that is about.
It ends with 0, or says what is wrong.
"""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

_UNITS = " KMGT"


def probe_disk(path: str, size: str) -> None:
    """Refuse a disk with less room for this user than `size`, such as 20G."""
    unit = size[-1] if size[-1] in _UNITS else " "
    needed = float(size.removesuffix(unit)) * 1024 ** _UNITS.index(unit)
    free = shutil.disk_usage(path).free
    if free < needed:
        sys.exit(f"{_shown(free)} free in {path}, {size} needed")


def probe_port(number: str = "0") -> None:
    """Refuse a machine on which nothing can listen on this port; 0: on none at all."""
    socket.create_server(("", int(number))).close()


def probe_host(name: str, port: str) -> None:
    """Refuse a machine that cannot connect to a host."""
    socket.create_connection((name.strip("[]"), int(port))).close()


def probe_gpu() -> None:
    """Refuse a machine without NVIDIA GPUs, and one of whose GPUs one does not answer."""
    there = gpu_devices()
    if (command := shutil.which("nvidia-smi")) is None:
        sys.exit(f"nvidia-smi, which asks the GPUs, is not installed; /dev has {there} of them")
    listed = subprocess.run([command, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    answer = listed_gpus(listed.stdout)
    if listed.returncode or not answer or answer < there:
        sys.exit(f"{listed.stdout}{answer} GPUs answer; /dev has {there} of them")


def listed_gpus(text: str) -> int:
    """How many GPUs the output of ``nvidia-smi -L`` lists."""
    return len(re.findall(r"^GPU \d+:", text, re.MULTILINE))


def gpu_devices() -> int:
    """How many GPUs this machine has nodes for; a container has those of its own GPUs only."""
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def _shown(size: float) -> str:
    """A number of bytes in the largest unit of which there is one at least."""
    unit = max((unit for unit in range(len(_UNITS)) if size >= 1024**unit), default=0)
    return f"{size / 1024**unit:.4g}{_UNITS[unit].strip()}"


def main() -> None:
    """Make one check."""
    kind, *about = sys.argv[1:]
    try:
        match kind:
            case "disk":
                probe_disk(*about)
            case "port":
                probe_port(*about)
            case "host":
                probe_host(*about)
            case "gpu":
                probe_gpu()
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
