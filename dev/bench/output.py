"""How fast one agent passes on what its processes write, and whether all of it: ``python3 dev/bench/output.py``.

Eight processes write lines of 100 bytes, 8 kB at a time, as Python does to a pipe. The seconds are those from the first
process's first byte to the end of what the agent's reader gets.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_LINE: Final = 99 * b"x" + b"\n"
_AT_A_TIME: Final = 80
"""Lines that a process writes at a time."""

_PROGRAM: Final = f"""
import os, sys, time
count, folder = int(sys.argv[1]), sys.argv[2]
block = {_AT_A_TIME} * ({_LINE!r})
open(f"{{folder}}/{{os.environ['LOCAL_RANK']}}", "w").write(str(time.monotonic()))
for _ in range(count // {_AT_A_TIME}):
    done = os.write(1, block)
    while done < len(block):
        done += os.write(1, block[done:])
"""


def measure(processes: int, megabytes: int, *arguments: str) -> tuple[float, float]:
    """Run an agent; returns the megabytes of lines in a second, without prefixes, and the share that was lost."""
    count = megabytes * 10_000 // processes // _AT_A_TIME * _AT_A_TIME
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "rdzv", "run", "--standalone", f"--endpoint={name}/db", *arguments]
        command += [f"--nproc-per-node={processes}", "--", sys.executable, "-c", _PROGRAM, str(count), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            lines, ended = 0, 0.0
            while block := os.read(agent.stdout.fileno(), 1 << 20):
                lines += block.count(b"\n")
                ended = time.monotonic()
        began = min(float((Path(name) / str(rank)).read_text()) for rank in range(processes))
    written = processes * count
    return written * len(_LINE) / 1e6 / (ended - began), 1 - lines / written


def main() -> None:
    """Measure each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ways = {"with prefixes": (), "without": ("--prefix=",), "and to files": ("--tee=1", f"--log-dir={folder}")}
        for name, arguments in ways.items():
            speed, lost = measure(given.processes, given.megabytes, *arguments)
            print(f"{name:15} {speed:6.0f} MB/s, {lost:.0%} lost")


if __name__ == "__main__":
    main()
