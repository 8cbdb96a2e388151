"""Round trips as they are counted, which a slow machine does not change: of four nodes, five times each. The medians go
to dev/bench/trips.toml, with which a test compares. It takes one to three minutes for each backend.
"""

import argparse
import sys
import tomllib
from pathlib import Path
from statistics import median
from typing import Final

from rdzv_conformance.servers import SERVERS

from .lines import CountedLine
from .measures.trips import trips
from .rows import ROWS
from .testbed import Testbed

__all__ = ["BACKENDS", "count", "recorded"]

BACKENDS: Final = ("c10d", *SERVERS)
_RECORD: Final = Path(__file__).with_name("trips.toml")
_HEAD: Final = """\
# Round trips that lie one after the other until all of four nodes know their world, as measures/trips.py has them: the
# median of five. `python3 dev.py trips` writes them anew; a test fails when a backend needs one more, five times.
"""
_REPEAT: Final = 5
"""How often each is counted."""
_LIMIT: Final = 60


def count(backend: str) -> dict[str, int]:
    """The round trips of a backend of rdzv, by what happens."""
    with Testbed(sys.executable, _LIMIT) as testbed:
        samples = trips(testbed, ROWS[f"rdzv/{backend}"], CountedLine)
        return {sample.measure.removeprefix("trips-"): int(sample.value or 0) for sample in samples}


def recorded() -> dict[str, dict[str, int]]:
    """The same as it was recorded, by backend."""
    return tomllib.loads(_RECORD.read_text())


def main() -> None:
    """Record those of some backends, or of all."""
    parser = argparse.ArgumentParser(prog="python3 dev.py trips", description=__doc__)
    known = ", ".join(BACKENDS)
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=f"{known}; all of them if none is named")
    chosen = parser.parse_args().backends or BACKENDS
    if unknown := set(chosen) - set(BACKENDS):
        parser.error(f"no round trips are counted of {', '.join(sorted(unknown))}, but of {known}")
    try:
        for backend in chosen:
            _record(backend)
    except KeyboardInterrupt:
        print(f"Stopped; what was counted before stands in {_RECORD.name}.", file=sys.stderr)
        sys.exit(130)


def _record(backend: str) -> None:
    print(f"{backend}, {_REPEAT} times:", flush=True)
    counts = []
    for _ in range(_REPEAT):
        counts.append(count(backend))
        print(" ", *(f"{what} {trips}" for what, trips in counts[-1].items()), sep="  ", flush=True)
    usual = {name: median(each[name] for each in counts) for name in counts[0]}
    lines = (
        f"{name} = {{ {', '.join(f'{what} = {trips}' for what, trips in found.items())} }}\n"
        for name, found in sorted((recorded() | {backend: usual}).items())
    )
    _RECORD.write_text("".join([_HEAD, *lines]))


if __name__ == "__main__":
    main()
