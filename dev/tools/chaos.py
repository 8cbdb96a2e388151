"""The chaos task, with a bug of the simulator's put back into the engine where one is named.

    python3 dev.py chaos --bug no-exclusivity --backend sqlite

What else it takes is the task's own: see ``python -m rdzv_conformance.chaos --help``. The session in noxfile.py says
where the simulator is.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from rdzv_conformance.chaos.command import main as chaos
from simulator.bugs import BUGS, put_back

__all__ = ["main"]

_BUGS: Final = [
    name for name, bug in BUGS.items() if all(change.where.__module__.startswith("rdzv.") for change in bug.changes)
]
"""Those of the engine; the simulator's own service and clocks are not used here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the task; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python3 dev.py chaos", add_help=False, allow_abbrev=False)
    parser.add_argument("--bug", choices=_BUGS)
    asked, rest = parser.parse_known_args(arguments)
    with put_back(asked.bug):
        return chaos(rest)


if __name__ == "__main__":
    sys.exit(main())
