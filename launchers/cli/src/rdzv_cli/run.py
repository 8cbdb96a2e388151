"""``rdzv run``: an elastic agent for any program."""

import argparse
import itertools
import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import rdzv
from rdzv import DynamicRendezvousHandler
from rdzv.config import parse_nnodes
from rdzv.hooks import Event, EventKind, hookimpl, register_hooks, unregister_hooks
from rdzv.inspector import RunInspector
from rdzv.programs import withhold
from rdzv.registry import get_rendezvous_handler
from rdzv_core.backend import BackendPlugin
from rdzv_core.errors import RendezvousError, RendezvousParameterError
from rdzv_core.options import secret_names
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin
from rdzv_core.text import listed, printable

from .agent import Agent, AgentOptions, AgentResult, Checks, ExitStatus, Restarts, Signals
from .agent.log_files import check_base
from .agent.options import JSON
from .common import add_node_options, parameters
from .exits import EXIT_CODES
from .log import be_verbose, before_each_line, clear, flush, say, speak_as, speak_json
from .news import News
from .sources import options_of
from .taking import Taking
from .told import for_agents, is_own_run
from .torchrun import add_to as add_torchruns
from .wait_line import WaitLine

logger = logging.getLogger(__name__)

_USAGE: Final = "%(prog)s [OPTION ...] -- CMD [ARG ...]\n       %(prog)s [OPTION ...] [-m] FILE.py [ARG ...]"

_LOUD: Final = (
    EventKind.NODE_LOST,
    EventKind.NODE_LEFT,
    EventKind.NODE_DRAINS,
    EventKind.NODE_FAILED,
    EventKind.NODE_QUARANTINED,
    EventKind.EVICTED,
)
"""What a user wants to know without asking."""

_LOOK: Final = 5.0
"""Seconds that a node which was not fit takes to look at its run, before it makes its checks again."""

_POLL: Final = 0.05
"""Seconds between two looks for a signal, until then."""

_OUTSIDE: Final = "this node is not in the run"
"""What a signal means for a node that makes its checks, or waits to make them again."""

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
        usage=_USAGE,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # What stands behind a file is its own: no option there is one of rdzv, cut short.
        allow_abbrev=False,
    )
    program = parser.add_argument("program", metavar="CMD", help="any program, after --; without it a file for Python")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARG", help="its arguments")
    # The parser says that it is missing: argparse would ask for "CMD, ARG".
    program.required = arguments.required = False
    parser.add_argument("-m", "--module", action="store_true", help="CMD is a module, for python -m")
    parser.add_argument("--no-python", action="store_true", help="CMD is any program, also without --")
    groups = add_node_options(parser)
    AgentOptions.add_to(parser, groups)
    add_torchruns(parser)
    parser.set_defaults(run=run, options=partial(options_of, parser))


def run(arguments: argparse.Namespace) -> int:
    """Run the agent; returns the exit code."""
    began = time.monotonic()
    environ = for_agents()
    taking = Taking.of(arguments, environ)
    options = AgentOptions.of(taking.arguments)
    if "verbose" in taking.sources.spelled:
        be_verbose(taking.arguments.verbose)
    if options.log_format == JSON:
        speak_json(taking.arguments.run_id)
    check_base(options.log_dir)
    params = _parameters(taking, options, environ)
    _warn_of_restarts(options)
    command = _command(arguments)
    # No other node needs to be disturbed by one that cannot start it.
    if shutil.which(command[0]) is None:
        hint = "; for Python leave out --" if os.path.isfile(command[0]) and command[0].endswith(".py") else ""
        say(f"cannot start '{printable(command[0])}': there is no such program, or it is not executable{hint}")
        return ExitStatus.FAILED.value
    plugin = load_backend_plugin(params.backend)
    public, environment = withhold(params, None if options.pass_secrets else secret_names(plugin.options), environ)
    checks = Checks(options.check or (), options.check_timeout, environment, options.keep_detached)
    restarts = Restarts(options.max_restarts)
    signals = Signals(drains=False, numbers=options.signals_to_handle)
    for cooldown in _cooldowns(options.check_cooldown):
        ending = _unfit(checks, signals) or _take_part(params, public, command, options, checks, restarts, taking)
        say(_in_words(ending, time.monotonic() - began))
        if ending.exit_status is not ExitStatus.UNFIT or not cooldown:
            break
        say(f"this node tries again in {cooldown:g} s")
        if ended := _ended_outside(params, cooldown, signals):
            ending = ended
            say(ending.reason)
            break
    return 0 if ending.exit_code in options.ok_exit_code else ending.exit_code


def _command(arguments: argparse.Namespace) -> list[str]:
    """The program and its arguments; for Python as torchrun starts it."""
    if arguments.module and arguments.no_python:
        raise RendezvousParameterError("--module is for Python, and --no-python for any other program: leave one out.")
    python = [os.environ.get("PYTHON_EXEC", sys.executable), "-u"] if arguments.module or arguments.is_file else []
    return [*python, *(["-m"] if arguments.module else []), arguments.program, *arguments.arguments]


def _warn_of_restarts(options: AgentOptions) -> None:
    """Say that a node which fails in each round ends before the run is given up."""
    least = options.give_up_after - 1
    if options.max_restarts < least:
        logger.warning(
            "--give-up-after %d takes --max-restarts %d or more, and it is %d: a node that fails in each round ends "
            "before, and the run is not given up",
            options.give_up_after,
            least,
            options.max_restarts,
        )


def _in_words(ending: AgentResult, seconds: float) -> str:
    """The last line of a node that has ended after so many seconds."""
    return f"done after {seconds:.1f} s: {ending.reason}" if ending.exit_status is ExitStatus.DONE else ending.reason


def _unfit(checks: Checks, signals: Signals) -> AgentResult | None:
    """How a node ends that is not fit to take part, or is asked to end before that is known; None: it is fit."""
    with signals.handled():
        unfit = checks.run(lambda: bool(signals.number))
    if signals.number:
        return AgentResult.of_signal(signals.number, _OUTSIDE)
    return AgentResult(ExitStatus.UNFIT, unfit) if unfit else None


def _ended_outside(params: RendezvousParameters, cooldown: float, signals: Signals) -> AgentResult | None:
    """How a node ends in the seconds before it makes its checks again, or by what its run says then; None: it does
    not."""
    ends = time.monotonic() + cooldown
    with signals.handled():
        while not signals.number and (remaining := ends - time.monotonic()) > 0:
            time.sleep(min(remaining, _POLL))
        closed = None if signals.number else _closed(params)
    return AgentResult.of_signal(signals.number, _OUTSIDE) if signals.number else closed


def _parameters(taking: Taking, options: AgentOptions, environ: Mapping[str, str]) -> RendezvousParameters:
    """How the node is made; what an agent around this one tells its program is not meant for that."""
    arguments = taking.arguments
    low, high = parse_nnodes(arguments.nnodes, taking.sources.spelled.get("nnodes", "--nnodes"))
    taking.host(low, high)
    beside = {"attempt": options.attempt, "master_port": options.master_port}
    given = {name: value for name, value in beside.items() if value is not None}
    params = parameters(arguments, low, high, environ, taking.below, **given)
    if is_own_run(params):
        shown = printable(params.run_id)
        raise RendezvousParameterError(
            f"The run '{shown}' is the one of which this process is a program, and it would wait for itself: give "
            f"another --run-id, such as '{shown}-inner'."
        )
    if not params.endpoint and os.environ.get("RDZV_ENDPOINT") and "RDZV_ENDPOINT" not in environ:
        logger.warning(
            "the variable RDZV_ENDPOINT is that of the run of which this process is a program, and is not used here; "
            "--endpoint and --backend give one"
        )
    return params


def _cooldowns(first: float | None) -> Iterator[float]:
    """The seconds to wait after each failed check; 0: it is the last one."""
    for doublings in itertools.count():
        yield (first or 0.0) * 2 ** min(doublings, _DOUBLINGS)


def _closed(params: RendezvousParameters) -> AgentResult | None:
    """How a node ends that was not fit, if its run is over; None: it is not, or cannot be asked now."""
    try:
        with RunInspector(params) as inspector:
            closed = inspector.closed(_LOOK)
    except RendezvousError as error:
        logging.getLogger("rdzv").info("whether the run goes on is not known: %s", error)
        return None
    return AgentResult.of_closed(closed) if closed is not None else None


def _take_part(
    params: RendezvousParameters,
    public: RendezvousParameters,
    command: Sequence[str],
    options: AgentOptions,
    checks: Checks,
    restarts: Restarts,
    taking: Taking,
) -> AgentResult:
    """Be a node of the run until it ends, or this node leaves it.

    Args:
        params: How the node is made.
        public: What the command may know of that.
        command: The program and its arguments.
        options: What the user has decided.
        checks: What the node must be fit for.
        restarts: How often the command may fail on this machine, and has failed.
        taking: What is the platform's.
    """
    handler = get_rendezvous_handler(params)
    if not isinstance(handler, DynamicRendezvousHandler):
        raise RendezvousParameterError(f"The backend '{params.backend}' brings a handler that `rdzv run` cannot watch.")
    handler.expect(taking.machines)
    speak_as(handler.view.node_id)
    say(_who_we_are(handler, params, load_backend_plugin(params.backend)) + taking.in_words)
    progress = _Progress(handler, options.grace)
    agent = Agent(
        handler,
        public,
        command,
        options,
        check=checks.run,
        environment=checks.environment,
        waiting=progress.waiting,
        ending=progress.ending,
        say=progress.say,
        restarts=restarts,
        drain_at=taking.drain_at,
    )
    progress.begin()
    try:
        return agent.run()
    finally:
        progress.end()


def _who_we_are(handler: DynamicRendezvousHandler, params: RendezvousParameters, plugin: BackendPlugin) -> str:
    endpoint = plugin.describe_endpoint(params.endpoint or plugin.default_endpoint or "")
    where = f"endpoint {printable(endpoint, 200)}, " if endpoint else ""
    return (
        f"run '{handler.settings.run}', backend {params.backend}, {where}"
        f"{handler.settings.limits}, node {handler.view.node_id} (rdzv {rdzv.__version__})"
    )


class _Progress:
    """Tells the user what is waited for, and what happens."""

    def __init__(self, handler: DynamicRendezvousHandler, grace: float = 0.0) -> None:
        self._handler = handler
        self._grace = grace
        self._wanted = str(handler.settings.limits)
        self._line = WaitLine()
        # What still runs writes to the same terminal: a line there is not taken away again.
        self._ends = WaitLine(is_in_place=False)
        self._news = News(self._say_news)

    def waiting(self, seconds: float) -> None:
        """Show that the node waits, and for whom.

        Args:
            seconds: How long it has waited; less than the last time: it is another wait.
        """
        self._line.waits(seconds, self._in_words)

    def ending(self, seconds: float, left: Sequence[int]) -> None:
        """Say that processes were asked to end and have not yet.

        Args:
            seconds: How long ago; less than the last time: it is another wait.
            left: Their local ranks; none: what they have started is left.
        """
        ranks = f"local rank{'s'[: len(left) > 1]} {listed([*map(str, left)])}"
        who = ranks if left else "what the command has started"
        self._ends.waits(
            seconds, lambda waited: f"waiting for {who} to end, {waited:.0f} s of {self._grace:g} s (--grace)"
        )

    def _in_words(self, seconds: float) -> str:
        return f"waiting for {self._wanted} ({self._handler.view.waits_for(seconds)}), {self._how_long(seconds)}"

    def _how_long(self, seconds: float) -> str:
        """How long it has waited, and how long it will: by what ends the wait first."""
        timeout, view = self._handler.settings.timeout, self._handler.view
        waits = [
            ("", seconds, timeout.join.total_seconds()),
            ("alone for ", view.alone, timeout.alone.total_seconds()),
            ("refused for ", view.refused, view.refused_timeout),
        ]
        limited = [(how, past, most) for how, past, most in waits if past is not None and most is not None]
        how, past, most = min(limited, key=lambda wait: wait[2] - wait[1])
        return f"{how}{past:.0f} s of {most:.0f} s"

    def say(self, text: str) -> None:
        """Say something that stays."""
        say(text)
        if self._line.is_in_place:
            # A program writes to the same terminal, and not before the line is taken away.
            flush()

    def begin(self) -> None:
        """Hear of events."""
        register_hooks(self)
        # The line of an event waits for others of its kind: what is said after it stands after it.
        before_each_line(self._news.tell)

    def end(self) -> None:
        """Hear of no more events, and leave none unsaid."""
        unregister_hooks(self)
        before_each_line()
        self._news.tell()
        clear()

    @hookimpl
    def rdzv_event(self, event: Event) -> None:
        """Say soon what happened, above the line."""
        self._news.add(event)

    def _say_news(self, kind: EventKind, line: str) -> None:
        logging.getLogger("rdzv").log(logging.WARNING if kind in _LOUD else logging.INFO, "%s", line)
