"""Run the fuzzer of dev/tests/fuzz again and again, each time with other examples, until one fails or time is over."""

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Do it; returns the exit code of the pass that failed, or 0."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to look: 10")
    parser.add_argument("tests", nargs="*", default=["dev/tests/fuzz"], help="of pytest, such as -k decoders")
    arguments, more = parser.parse_known_args()
    environ = {**os.environ, "RDZV_FUZZ": "1"}
    began = time.monotonic()
    passes = 0
    while time.monotonic() - began < 60 * arguments.minutes:
        seed = secrets.randbits(32)
        command = [sys.executable, "-m", "pytest", "--quiet", "-m", "soak", f"--hypothesis-seed={seed}"]
        code = subprocess.run([*command, *arguments.tests, *more], cwd=ROOT, check=False, env=environ).returncode
        passes += 1
        minutes = (time.monotonic() - began) / 60
        print(
            f"Pass {passes} after {minutes:.1f} min: {'a finding' if code else 'none found'}, seed {seed}", flush=True
        )
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
