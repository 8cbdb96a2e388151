"""What tox.ini's matrix tries."""

import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def matrix() -> dict[str, set[str]]:
    """For each package, by the name of its folder: the Pythons on which it is tried, such as `py311`."""
    tox = [sys.executable, "-m", "tox", "list", "-qq", "--no-desc"]
    listed = subprocess.run(tox, cwd=ROOT, capture_output=True, text=True, check=True)
    pythons: dict[str, set[str]] = {}
    for environment in listed.stdout.split():
        python, _, package = environment.partition("-")
        pythons.setdefault(package, set()).add(python)
    return pythons
