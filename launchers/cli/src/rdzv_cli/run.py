"""``rdzv run``: an elastic agent for any program."""

import argparse
import itertools
import logging
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Final

from rdzv import DynamicRendezvousHandler
from rdzv.config import parse_nnodes
from rdzv.hooks import Event, EventKind, hookimpl, register_hooks, unregister_hooks
from rdzv.programs import withhold
from rdzv.registry import get_rendezvous_handler
from rdzv_core.backend import BackendPlugin
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import secret_names
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin
from rdzv_core.text import printable

from .agent import Agent, AgentResult, Checks, ExitStatus, parse_check
from .common import add_needed, add_run_options, count, parameters, rounds, seconds, signal_number, some_seconds
from .devices import processes
from .exits import EXIT_CODES
from .log import say, speak_as, write

_FIRST = 2.0
"""Seconds of a wait before its first line: most waits are over by then."""

_MOST = 30.0
"""Seconds between two lines, at most, where there is no terminal to refresh one on."""

_LOUD: Final = (
    EventKind.NODE_LOST,
    EventKind.NODE_LEFT,
    EventKind.NODE_DRAINS,
    EventKind.NODE_FAILED,
    EventKind.NODE_QUARANTINED,
    EventKind.EVICTED,
)
"""What a user wants to know without asking."""

_DOUBLINGS: Final = 3
"""How often the cooldown is doubled at most."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "run",
        help="join a run and start a command in every world it forms",
        description=textwrap.fill(
            "Join a run, start CMD with the variables of its place in the world (RANK, WORLD_SIZE, MASTER_ADDR, "
            "MASTER_PORT, RDZV_ROUND and so on), and start it again whenever the world changes."
        ),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    _add_node_options(parser)
    _add_ending_options(parser)
    _add_check_options(parser)
    parser.add_argument(
        "--pass-secrets",
        action="store_true",
        help="let CMD see the passwords and tokens, too; it needs none if they are in files",
    )
    program = parser.add_argument("program", metavar="-- CMD", help="the program")
    arguments = parser.add_argument("arguments", nargs="*", metavar="ARG", help="its arguments")
    # The parser says that it is missing: argparse would ask for "-- CMD, ARG".
    program.required = arguments.required = False
    parser.set_defaults(run=run)


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    """What this node brings, and asks of a world."""
    add_needed(parser, "--nnodes", "RDZV_NNODES", "MIN:MAX", "how many nodes a world has, as 2:4 or 4")
    parser.add_argument(
        "--nproc-per-node",
        type=processes,
        default=1,
        metavar="N",
        help="processes per node (default: 1); gpu: one for each NVIDIA GPU; cpu: one for each CPU; auto: gpu if there "
        "is any, else cpu",
    )
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="N",
        help="how often CMD may fail on this node before it gives up (default: 0); a new world costs none",
    )
    parser.add_argument("--attempt", type=count, metavar="N", help="the scheduler's restart count (default: 0)")
    parser.add_argument(
        "--local-addr",
        metavar="ADDRESS",
        help="this node's address as the others reach it (default: RDZV_LOCAL_ADDR, else the one from which it calls "
        "the service)",
    )


def _add_ending_options(parser: argparse.ArgumentParser) -> None:
    """When the program, this node and the run end."""
    parser.add_argument(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="between asking CMD to end and killing it (default: 10)",
    )
    parser.add_argument(
        "--drain",
        type=some_seconds,
        metavar="SECONDS",
        help="after the first SIGTERM or SIGUSR1 stay in the world for so long, or until all are ready, so that all "
        "can save their work (default: go at once, as after a second one)",
    )
    parser.add_argument(
        "--give-up-after",
        type=rounds,
        default=0,
        metavar="N",
        help="close the run after so many consecutive rounds, up to 10, in which CMD failed and progress() came no "
        "further than before; --max-restarts has to allow for them (default: never)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=some_seconds,
        metavar="SECONDS",
        help="how long a process that has called rdzv.current().progress() may take until it calls it again; then it "
        "counts as failed (default: any time)",
    )
    parser.add_argument(
        "--on-drain",
        type=signal_number,
        default=0,
        metavar="SIGNAL",
        help="what CMD is sent when a node of its world is about to leave, such as SIGUSR1 (default: none)",
    )


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    """What this node must be fit for."""
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        type=parse_check,
        metavar="CHECK",
        help="what this node must be fit for to take part: a command line, disk:PATH:SIZE, port, port:NUMBER, gpu or "
        "host:NAME:PORT; may be repeated",
    )
    parser.add_argument(
        "--check-timeout",
        type=some_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long each check may take (default: 60)",
    )
    parser.add_argument(
        "--check-cooldown",
        type=some_seconds,
        metavar="SECONDS",
        help="after a check has failed, wait so long and try again; twice as long each time, up to 8 times as long "
        "(default: end)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the agent; returns the exit code."""
    low, high = parse_nnodes(arguments.nnodes, "--nnodes")
    attempt = {} if arguments.attempt is None else {"attempt": arguments.attempt}
    params = parameters(arguments, low, high, **attempt)
    # No other node needs to be disturbed by one that cannot start it.
    if shutil.which(arguments.program) is None:
        say(f"cannot start '{printable(arguments.program)}': there is no such program, or it is not executable")
        return ExitStatus.FAILED.value
    plugin = load_backend_plugin(params.backend)
    public, environment = withhold(params, None if arguments.pass_secrets else secret_names(plugin.options))
    checks = Checks(arguments.check, arguments.check_timeout, environment)
    restarts = 0
    for cooldown in _cooldowns(arguments.check_cooldown):
        if unfit := checks.run():
            ending = AgentResult(ExitStatus.UNFIT, unfit)
        else:
            ending, restarts = _take_part(arguments, params, public, checks, restarts)
        if ending.exit_status is not ExitStatus.DONE:
            say(f"ended by {ending.reason}; this node leaves the run" if ending.signal else ending.reason)
        if ending.exit_status is not ExitStatus.UNFIT or not cooldown:
            break
        say(f"this node tries again in {cooldown:g} s")
        time.sleep(cooldown)
    return ending.exit_code


def _cooldowns(first: float | None) -> Iterator[float]:
    """The seconds to wait after each failed check; 0: it is the last one."""
    for doublings in itertools.count():
        yield (first or 0.0) * 2 ** min(doublings, _DOUBLINGS)


def _take_part(
    arguments: argparse.Namespace,
    params: RendezvousParameters,
    public: RendezvousParameters,
    checks: Checks,
    restarts: int,
) -> tuple[AgentResult, int]:
    """Be a node of the run until it ends, or this node leaves it.

    Args:
        arguments: The command line.
        params: How the node is made.
        public: What the command may know of that.
        checks: What the node must be fit for.
        restarts: How often the command has failed on this machine and was to be started again.

    Returns:
        How it ended, and the restarts up to then.
    """
    handler = get_rendezvous_handler(params)
    if not isinstance(handler, DynamicRendezvousHandler):
        raise RendezvousParameterError(f"The backend '{params.backend}' brings a handler that `rdzv run` cannot watch.")
    speak_as(handler.view.node_id)
    say(_who_we_are(handler, params, load_backend_plugin(params.backend)))
    progress = _Progress(handler)
    agent = Agent(
        handler,
        public,
        [arguments.program, *arguments.arguments],
        processes=arguments.nproc_per_node,
        max_restarts=arguments.max_restarts,
        grace=arguments.grace,
        drain=arguments.drain,
        give_up_after=arguments.give_up_after,
        hang_timeout=arguments.hang_timeout,
        on_drain=arguments.on_drain,
        check=checks.run,
        environment=checks.environment,
        waiting=progress.waiting,
        say=progress.say,
        restarts=restarts,
    )
    register_hooks(progress)
    try:
        return agent.run(), agent.restarts
    finally:
        unregister_hooks(progress)
        progress.clear()


def _who_we_are(handler: DynamicRendezvousHandler, params: RendezvousParameters, plugin: BackendPlugin) -> str:
    endpoint = plugin.describe_endpoint(params.endpoint or plugin.default_endpoint or "")
    return (
        f"run '{handler.settings.run}', backend {params.backend}, endpoint {printable(endpoint, 200)}, "
        f"{handler.settings.limits}, node {handler.view.node_id}"
    )


class _Progress:
    """Tells the user what is waited for, and what happens."""

    def __init__(self, handler: DynamicRendezvousHandler) -> None:
        self._handler = handler
        self._wanted = str(handler.settings.limits)
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._waited = 0.0
        self._due = _FIRST
        self._shown = False

    def waiting(self, seconds: float) -> None:
        """Show one line: refreshed on a terminal; elsewhere ever more seldom, the longer the wait.

        Args:
            seconds: How long it has waited; less than the last time: it is another wait.
        """
        if seconds < self._waited:
            self._due = _FIRST
        self._waited = seconds
        if seconds < self._due:
            return
        self._due = seconds + (0.5 if self._terminal else min(seconds, _MOST))
        status = self._handler.view.status
        here = f"{status.phase}, {status.present} here" if status else "nothing known of the others yet"
        trouble, silence = self._handler.view.connection_error, self._handler.view.since_last_contact
        if trouble is not None or silence == math.inf:
            silent = seconds if silence == math.inf else silence
            here = f"no call to the service has succeeded for {silent:.0f} s: {trouble or 'no error yet'}"
        quarantine = f"{found}, " if (found := self._handler.view.quarantine) else ""
        line = f"waiting for {self._wanted} ({quarantine}{here}), {self._how_long(seconds)}"
        if self._terminal:
            # Only a line that does not wrap can be taken away again.
            line = printable(f"rdzv: {line}", shutil.get_terminal_size().columns - 1)
            write(f"\r\x1b[K{line}")
            self._shown = True
        else:
            say(line)

    def _how_long(self, seconds: float) -> str:
        """How long it has waited, and how long it will: by what ends the wait first."""
        timeout, alone = self._handler.settings.timeout, self._handler.view.alone
        join, patience = timeout.join.total_seconds(), timeout.alone.total_seconds()
        if alone is not None and patience - alone < join - seconds:
            return f"alone for {alone:.0f} s of {patience:.0f} s"
        return f"{seconds:.0f} s of {join:.0f} s"

    def say(self, text: str) -> None:
        """Say something that stays."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            write("\r\x1b[K")
            self._shown = False

    @hookimpl
    def rdzv_event(self, event: Event) -> None:
        """Say what happened, above the line."""
        self.clear()
        loud = event.kind in _LOUD
        logging.getLogger("rdzv").log(
            logging.WARNING if loud else logging.INFO,
            "%s: %s (round %d): %s",
            event.kind.value,
            event.node,
            event.round,
            event.cause,
        )
