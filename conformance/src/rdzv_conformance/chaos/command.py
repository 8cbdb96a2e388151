"""The command: so many minutes of faults on one backend."""

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rdzv import RendezvousError, RendezvousParameterError, RendezvousParameters
from rdzv.observer import Observer

from ..servers import ServiceMissingError
from ..simulator.bugs import BUGS, put_back
from .agent import Job
from .campaign import Campaign
from .history import tell
from .service import find_service
from .stage import Stage

__all__ = ["main"]

_BUGS: Final = [
    name for name, bug in BUGS.items() if all(change.where.__module__.startswith("rdzv.") for change in bug.changes)
]
"""Those of the core; the simulator's own service and clocks are not used here."""

_PURGE: Final = 3.0
"""Times to live after which every lease should be over."""

_BEFORE: Final = 3.0
"""Times to live that the story begins before the first violation."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 if an invariant was violated, 2 if it cannot be run."""
    asked = _parser().parse_args(arguments)
    try:
        with ExitStack() as cleanup:
            return _run(asked, cleanup)
    except (RendezvousError, ServiceMissingError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; everything is stopped and removed.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rdzv_conformance.chaos",
        description="Lets agents meet on a real service while they are killed, paused and cut off, and while the "
        "service is; then checks what each of them wrote down. Exit code 1: an invariant was violated.",
    )
    parser.add_argument("--backend", required=True, help="the backend's name")
    parser.add_argument("--endpoint", help="a service that runs already, and is left alone (default: start one)")
    parser.add_argument("--server", metavar="MODULE:CLASS", help="what to start instead of the service that we know")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="for the core or the backend"
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long things go wrong (default: 1)")
    parser.add_argument("--seed", type=int, help="what goes wrong, and when (default: by chance, and told)")
    parser.add_argument("--agents", type=int, default=8, help="how many agents there are (default: 8)")
    parser.add_argument("--nnodes", type=_limits, default=(4, 7), metavar="MIN:MAX", help="of a world (default: 4:7)")
    parser.add_argument("--ttl", type=float, default=3.0, help="the time to live, in seconds (default: 3)")
    parser.add_argument("--bound", type=float, help="seconds of calm within which all must be well (default: 10 ttl)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the histories there")
    parser.add_argument("--bug", choices=_BUGS, help="put a bug of the simulator's back, to see it found")
    return parser


def _limits(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX")
    return int(low), int(high)


def _run(asked: argparse.Namespace, cleanup: ExitStack) -> int:
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    stage = _set(asked, cleanup)
    print(f"{asked.backend}, seed {seed}: {_what_there_is(stage)}", flush=True)
    began = time.monotonic()
    progress = _progress(began + 60 * asked.minutes)
    campaign = Campaign(stage, seed, 60 * asked.minutes, asked.bound or 10 * asked.ttl, progress)
    campaign.run()
    _clear()
    print(f"{asked.backend}, seed {seed}: {(time.monotonic() - began) / 60:.1f} min, {campaign}", flush=True)
    if not campaign.findings:
        return 0
    print(_tell(campaign))
    return 1


def _set(asked: argparse.Namespace, cleanup: ExitStack) -> Stage:
    """The stage, with all that it needs; `cleanup` takes it down."""
    folder = asked.keep or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="rdzv-chaos-")))
    folder.mkdir(parents=True, exist_ok=True)
    _check(asked, folder)
    if asked.bug:
        cleanup.enter_context(put_back(asked.bug))
    options = dict(option.partition("=")[::2] for option in asked.option)
    low, high = asked.nnodes
    job = Job(asked.backend, f"chaos-{time.time_ns()}", low, high, asked.ttl, options)
    service = cleanup.enter_context(find_service(asked.backend, asked.endpoint, asked.server))
    if asked.endpoint is not None:
        cleanup.callback(_purge, job.parameters(asked.endpoint, "nobody", 0), asked.ttl)
    return cleanup.enter_context(Stage(job, service, folder, asked.agents))


def _check(asked: argparse.Namespace, folder: Path) -> None:
    low, _ = asked.nnodes
    if asked.agents < low:
        raise RendezvousParameterError(f"{asked.agents} agents form no world of at least {low}: raise --agents.")
    if any(folder.glob("*.jsonl")):
        raise RendezvousParameterError(f"--keep {folder} has histories already: empty it, or name another folder.")


def _purge(parameters: RendezvousParameters, ttl: float) -> None:
    """Leave nothing in a service that goes on without us; whoever was killed has a lease for another moment."""
    with Observer(parameters) as observer:
        observer.purge(_PURGE * ttl)


def _what_there_is(stage: Stage) -> str:
    ways = "no lines to cut" if stage.lines is None else "lines of proxies"
    ways = "lines of proxies out of network namespaces" if stage.alone else ways
    servers = len(stage.service.members)
    return f"{stage.size} agents, {servers or 'no'} server{'s' * (servers != 1)} to hurt, {ways}"


def _progress(ends: float) -> Callable[[Campaign], None]:
    """Shows how it goes: a line that changes on a terminal, else one for each storm."""
    told = 0

    def tell_how_it_goes(campaign: Campaign) -> None:
        nonlocal told
        line = f"{max(0.0, ends - time.monotonic()):.0f} s left, {campaign}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}"[:160], end="", file=sys.stderr, flush=True)
        elif campaign.calms > told:
            print(line, file=sys.stderr, flush=True)
        told = campaign.calms

    return tell_how_it_goes


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)


def _tell(campaign: Campaign) -> str:
    """What is wrong, and the story around the first of it."""
    first, records = campaign.findings[0], campaign.stage.history.records
    began = min(record.at for record in records)
    # Where nothing comes about, the reason lies before the calm.
    since = first.at - _BEFORE * campaign.stage.job.ttl - (campaign.bound if first.number == 4 else 0.0)
    story = tell((record for record in records if since <= record.at <= first.at), began)
    found = "\n".join(f"{finding.at - began:9.3f}  {finding}" for finding in campaign.findings)
    return f"{found}\n\nWhat came before the first of them, in seconds since the attempt began:\n\n{story}"
