"""The command: so many minutes of faults on one backend."""

import argparse
import math
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rdzv import RendezvousError, RendezvousParameterError, RendezvousParameters
from rdzv.config import parse_nnodes
from rdzv.inspector import RunInspector

from ..servers import ServiceMissingError
from .agent import Job
from .campaign import Campaign
from .history import tell
from .preflight import try_out
from .service import find_service
from .testbed import EVENT_LOG, Testbed

_PURGE: Final = 3.0
"""Times to live after which every lease should be over."""

_BEFORE: Final = 3.0
"""Times to live that the trace begins before the first violation."""

_OURS: Final = ("backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr", "attempt", "node_name")
"""What every agent is given anyway, and no --option may say."""


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
    service = parser.add_mutually_exclusive_group()
    service.add_argument("--endpoint", help="a service that runs already, and is left alone (default: start one)")
    service.add_argument("--server", metavar="MODULE:CLASS", help="what to start instead of the service that we know")
    parser.add_argument(
        "--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="for rdzv or the backend"
    )
    parser.add_argument("--minutes", type=_positive, default=1.0, help="how long things go wrong (default: 1)")
    parser.add_argument("--seed", type=int, help="what goes wrong, and when (default: by chance, and told)")
    parser.add_argument("--agents", type=int, default=8, help="how many agents there are (default: 8)")
    parser.add_argument("--nnodes", type=_limits, default=(4, 7), metavar="MIN:MAX", help="of a world (default: 4:7)")
    parser.add_argument("--ttl", type=_positive, default=3.0, help="the time to live, in seconds (default: 3)")
    parser.add_argument(
        "--bound", type=_positive, help="seconds of the quiet phase until all must be in a world (default: 10 ttl)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the histories there")
    return parser


def _positive(text: str) -> float:
    """A finite number above zero, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _limits(text: str) -> tuple[int, int]:
    try:
        return parse_nnodes(text)
    except RendezvousParameterError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if name in _OURS:
        raise argparse.ArgumentTypeError(f"{name!r} is no option of the agents' that can be chosen")
    return name, value


def _run(asked: argparse.Namespace, cleanup: ExitStack) -> int:
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    testbed = _set(asked, cleanup)
    print(f"{asked.backend}, seed {seed}: {_what_there_is(testbed)}", flush=True)
    began = time.monotonic()
    progress = _progress(began + 60 * asked.minutes)
    campaign = Campaign(testbed, seed, 60 * asked.minutes, asked.bound or 10 * asked.ttl, progress)
    campaign.run()
    _clear()
    print(f"{asked.backend}, seed {seed}: {(time.monotonic() - began) / 60:.1f} min, {campaign}", flush=True)
    if not campaign.violations:
        return 0
    print(_tell(campaign))
    return 1


def _set(asked: argparse.Namespace, cleanup: ExitStack) -> Testbed:
    """The testbed, with all that it needs; `cleanup` takes it down."""
    low, high = asked.nnodes
    if asked.agents < low:
        raise RendezvousParameterError(f"{asked.agents} agents form no world of at least {low}: raise --agents.")
    folder = asked.keep or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="rdzv-chaos-")))
    service = cleanup.enter_context(find_service(asked.backend, asked.endpoint, asked.server))
    options = {**service.options, **dict(asked.option)}
    job = Job(asked.backend, f"chaos-{time.time_ns()}", low, high, asked.ttl, options)
    try_out(job.parameters(service.endpoint, "chaos", 0))
    # Now only: a run that was refused leaves nothing there.
    _claim(folder)
    if asked.endpoint is not None:
        cleanup.callback(_purge, job.parameters(asked.endpoint, "chaos", 0), asked.ttl)
    return cleanup.enter_context(Testbed(job, service, folder, asked.agents))


def _claim(folder: Path) -> None:
    """Make a folder ours alone: the agents of another run would be taken for some of this one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RendezvousParameterError(f"--keep {folder} cannot be made a folder: {error.strerror}.") from error
    try:
        if any(folder.glob("*.jsonl")):
            raise FileExistsError
        (folder / EVENT_LOG).touch(0o600, exist_ok=False)
    except FileExistsError as error:
        raise RendezvousParameterError(
            f"--keep {folder} has histories already, or another run uses it: empty it, or name another folder."
        ) from error
    except OSError as error:
        raise RendezvousParameterError(f"--keep {folder} cannot be written: {error.strerror}.") from error


def _purge(parameters: RendezvousParameters, ttl: float) -> None:
    """Leave nothing in a service that goes on without us; an agent that was killed has a lease for another moment."""
    with RunInspector(parameters) as observer:
        observer.purge(_PURGE * ttl)


def _what_there_is(testbed: Testbed) -> str:
    ways = "no proxies to partition" if testbed.proxies is None else "fault proxies"
    ways = "fault proxies out of network namespaces" if testbed.isolated else ways
    servers = len(testbed.service.members)
    return f"{testbed.size} agents, {servers or 'no'} server{'s' * (servers != 1)} to fault, {ways}"


def _progress(ends: float) -> Callable[[Campaign], None]:
    """Shows how it goes: a line that changes on a terminal, else one for each fault phase."""
    told = 0

    def tell_how_it_goes(campaign: Campaign) -> None:
        nonlocal told
        line = f"{max(0.0, ends - time.monotonic()):.0f} s left, {campaign}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}"[:160], end="", file=sys.stderr, flush=True)
        elif campaign.quiet_phases > told:
            print(line, file=sys.stderr, flush=True)
        told = campaign.quiet_phases

    return tell_how_it_goes


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)


def _tell(campaign: Campaign) -> str:
    """What is wrong, and the trace around the first of it."""
    first, records = campaign.violations[0], campaign.testbed.history.records
    began = min(record.at for record in records)
    # Where no world forms, the reason lies before the quiet phase.
    since = first.at - _BEFORE * campaign.testbed.job.ttl - (campaign.bound if first.number == 4 else 0.0)
    trace = tell((record for record in records if since <= record.at <= first.at), began)
    found = "\n".join(f"{violation.at - began:9.3f}  {violation}" for violation in campaign.violations)
    return f"{found}\n\nWhat came before the first of them, in seconds since the attempt began:\n\n{trace}"
