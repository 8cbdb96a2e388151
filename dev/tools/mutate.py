#!/usr/bin/env python3
"""Mutation: breaks one decision of the engine at a time, and names every one that no test notices.

A mutant is the source with one expression changed: a comparison turned or moved by one, an ``and`` made an ``or``
or one of its parts dropped, a condition made always or never true, a ``not``, a flag, a number, ``any`` and
``all``, ``min`` and ``max``, a slice. It lives in the memory of one process; no file is touched. Of the tests that take
seconds those are asked first that call the changed function, then the others; if they notice nothing, some seeds of
the simulator.

Every decision of the rules, the records, the pages of a world, a node's memory, its coroutines, the leader's, the
handler and an observer of leases, and of what `rdzv run` takes from its platform, is tried: some 2,800 mutants, each
of which takes a fifth of a second of processor time, or five if it lives.

(mutmut 3.8 mutates more than decisions, copies the tree, and asks one command only; cosmic-ray 8.7 changes the
files of the tree. Neither keeps a list of survivors with reasons.)

None may live, unless ``dev/tools/survivors.toml`` says why it does no harm; a mutant that is explained there and
killed now, or exists no more, is an error as well. What lives is printed as soon as it is known.

``dev/tools/mutated.toml`` records each function all of whose mutants were as they should be, with a fingerprint of what
that depends on most: its source, its tests, what is explained of it, and this tool. CI tries those whose fingerprint is
another one. A full run finds what came about elsewhere: in what the function calls, or in the helpers of the tests.

    python3 dev.py mutate                  all of them
    python3 dev.py mutate rules.decide     all whose name has this in it
    python3 dev.py mutate --changed        those of functions that are not in the record as they are now
"""

import argparse
import ast
import copy
import hashlib
import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (ROOT / "engine" / "src", ROOT / "core" / "src", ROOT / "launchers" / "cli" / "src")
TESTS: Final = (ROOT / "engine" / "tests", ROOT / "core" / "tests", ROOT / "launchers" / "cli" / "tests")
SEEDS: Final = range(60)
"""What the simulator tries with a mutant that the tests let live."""
PATIENCE: Final = 30
"""Seconds of processor time after which a mutant that hangs counts as noticed; of the clock's, three times as many."""
UNCHANGED: Final = 8 * PATIENCE
"""The same for all tests of a group while nothing is changed, and each call is noted."""
EXPLAINED: Final = ROOT / "dev" / "tools" / "survivors.toml"
RECORD: Final = ROOT / "dev" / "tools" / "mutated.toml"

Swap = tuple[ast.expr, ast.expr]


@dataclass(frozen=True)
class Group:
    """Modules whose mutants are tried in the same way.

    Attributes:
        modules: What they are imported as.
        tests: The files of tests that are asked first; they hardly wait for anything.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def sources(self) -> dict[str, str]:
        """The text of each module."""
        return {name: _file(f"{name.replace('.', '/')}.py", SOURCES).read_text() for name in self.modules}

    @property
    def test_files(self) -> list[Path]:
        """Where its tests are."""
        return [_file(f"test_{name}.py", TESTS) for name in self.tests]


GROUPS: Final = (
    Group(
        (
            "rdzv.admission",
            "rdzv.engine.rules",
            "rdzv.engine.growth",
            "rdzv.engine.eligibility",
            "rdzv.engine.quarantine",
            "rdzv.engine.verdicts",
            "rdzv.engine.progress",
            "rdzv.engine.countdown",
            "rdzv.engine.notices",
            "rdzv.engine.records",
            "rdzv.engine.codec",
            "rdzv_core.envelope",
        ),
        (
            "records",
            "rules",
            "rules_decisions",
            "admission",
            "growth",
            "eligibility",
            "quarantine",
            "countdown",
            "notices",
            "envelope",
            "envelope_bytes",
            "crowds",
            "worlds",
            "verdicts",
        ),
    ),
    Group(
        (
            "rdzv.engine.node",
            "rdzv.engine.candidacy",
            "rdzv.engine.events",
            "rdzv.engine.run_view",
            "rdzv.engine.connection",
            "rdzv.engine.failures",
        ),
        ("node", "connection", "crowds", "worlds", "verdicts"),
    ),
    Group(("rdzv.engine.registration",), ("registration", "keep_coroutine")),
    Group(("rdzv.engine.lease_observer",), ("lease_observer",)),
    Group(("rdzv.engine.refusals",), ("node", "join_coroutine", "crowds", "verdicts")),
    Group(
        (
            "rdzv.engine.watch",
            "rdzv.engine.keep_alive",
            "rdzv.engine.register",
            "rdzv.engine.join",
            "rdzv.engine.leave",
            "rdzv.engine.drain",
            "rdzv.engine.report",
            "rdzv.engine.reckoning",
        ),
        (
            "join_coroutine",
            "keep_coroutine",
            "leave_coroutine",
            "drain_coroutine",
            "report_coroutine",
            "worlds",
            "verdicts",
        ),
    ),
    Group(
        ("rdzv.engine.leader", "rdzv.engine.status_writer", "rdzv.engine.quarantine_ledger", "rdzv.engine.pace"),
        ("lead_coroutine", "worlds", "pace"),
    ),
    Group(
        ("rdzv.engine.garbage", "rdzv.engine.collector"),
        ("garbage", "lead_coroutine", "leave_coroutine", "worlds"),
    ),
    Group(
        ("rdzv.engine.handler", "rdzv.engine.lifetime", "rdzv.engine.rounds", "rdzv.engine.node_view"),
        ("dynamic_handler", "waits"),
    ),
    Group(("rdzv.engine.worlds",), ("worlds", "lead_coroutine")),
    Group(("rdzv.engine.waits",), ("waits",)),
    Group(("rdzv.engine.missing",), ("missing",)),
    Group(("rdzv.engine.ports",), ("ports",)),
    Group(("rdzv.engine.address",), ("address",)),
    Group(
        ("rdzv_cli.platforms.hostlist", "rdzv_cli.platforms.readers", "rdzv_cli.platforms.detect", "rdzv_cli.launch"),
        ("hostlist", "readers", "platforms", "launch"),
    ),
)


class Noticed(Enum):
    """What noticed a mutant."""

    BY_NOTHING = 0
    BY_TESTS = 1
    BY_SIMULATOR = 2
    BY_HANGING = 3


@dataclass(frozen=True, eq=False)
class Mutant:
    """One module with one expression changed.

    Attributes:
        name: Module, function, the old text and the new one.
        module: What it is imported as.
        function: The function in it, with its class in front.
        tree: The module as it is; all its mutants share it.
        swap: The old text, and the new one.
    """

    name: str
    module: str
    function: str
    tree: ast.Module
    swap: Swap

    @property
    def changed(self) -> ast.Module:
        """All of the module, with the change."""
        return self._changed(self.tree)

    @property
    def changed_statement(self) -> ast.Module:
        """The one statement of the module that is changed: compiling the others takes longer than most tests."""
        line = self.swap[0].lineno
        changed = next(one for one in self.tree.body if one.lineno <= line <= (one.end_lineno or 0))
        return self._changed(ast.Module([changed], []))

    def _changed(self, tree: ast.Module) -> ast.Module:
        return ast.fix_missing_locations(copy.deepcopy(tree, {id(self.swap[0]): self.swap[1]}))


# Making mutants.

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_FUNCTIONS: Final = {"any": "all", "all": "any", "min": "max", "max": "min"}


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module; those of the same name are numbered."""
    tree = ast.parse(source)
    short = module.rpartition(".")[2]
    seen: Counter[str] = Counter()
    for function, node in _functions(tree):
        for old, new in (swap for statement in node.body for part in _parts(statement) for swap in _swaps(part)):
            name = f"{short}.{function}: {ast.unparse(old)} -> {ast.unparse(new)}"
            seen[name] += 1
            yield Mutant(name if seen[name] == 1 else f"{name} ({seen[name]})", module, function, tree, (old, new))


def _file(path: str, folders: Sequence[Path]) -> Path:
    """The file of that path below the first folder that has it."""
    return next(file for folder in folders if (file := folder / path).exists())


def all_mutants(group: Group) -> list[Mutant]:
    """The mutants of all modules of a group."""
    return [mutant for module, source in group.sources.items() for mutant in mutants(module, source)]


def function_of(name: str) -> str:
    """The function that a mutant is of, with its module in front."""
    return name.partition(":")[0]


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function, with its class in front; constants and defaults of modules and classes decide nothing."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{inside}{node.name}", node


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything below it, but for messages."""
    if not isinstance(node, ast.JoinedStr):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)


def _swaps(node: ast.AST) -> Iterator[Swap]:
    """The ways to change one node of the syntax tree."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from ((test, ast.Constant(value)) for value in (True, False))
        case ast.comprehension(ifs=conditions):
            yield from ((one, ast.Constant(value)) for one in conditions for value in (True, False))
        case ast.Compare(left=left, ops=ops, comparators=others):
            for place, before in enumerate(ops):
                for after in _COMPARISONS[type(before)]:
                    yield node, ast.Compare(left, [*ops[:place], after(), *ops[place + 1 :]], others)
        case ast.BoolOp(op=op, values=values):
            yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield node, rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, operand
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield node, ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right)
        case ast.Call(func=ast.Name(id=function) as name) if function in _FUNCTIONS:
            yield name, ast.Name(_FUNCTIONS[function], ast.Load())
        case ast.Subscript(value=value, slice=ast.Slice()):
            yield node, value
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)


# Trying them.


def put_in_place(mutant: Mutant) -> None:
    """Give a function of an imported module the code that it has in the mutant."""
    code = next(_codes(compile(mutant.changed_statement, mutant.module, "exec"), mutant.function))
    found: Any = sys.modules[mutant.module]
    for name in mutant.function.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    if hasattr(found, "cache_clear"):
        found.cache_clear()
    inspect.unwrap(found).__code__ = code


def _codes(code: CodeType, function: str) -> Iterator[CodeType]:
    """The code of a function, within that of its module."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_qualname == function:
                yield inner
            yield from _codes(inner, function)


def try_out(mutant: Mutant, items: Sequence[pytest.Item]) -> Noticed:
    """What notices a mutant; to be called once in a process."""
    put_in_place(mutant)
    if _first_failure(items) is not None:
        return Noticed.BY_TESTS
    if mutant.module.startswith("rdzv_cli."):
        # The simulator runs nothing of the command.
        return Noticed.BY_NOTHING
    sys.path.insert(0, str(TESTS[0]))
    from simulator.search import run_seeds

    logging.disable()
    return Noticed.BY_SIMULATOR if run_seeds(list(SEEDS), None).violations else Noticed.BY_NOTHING


def _first_failure(items: Sequence[pytest.Item], begin: Callable[[], object] = lambda: None) -> str | None:
    """Run tests until one fails, and name it; `begin` is called before each."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        begin()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return item.nodeid
    return None


def _functions_called(items: Sequence[pytest.Item], modules: Sequence[str]) -> tuple[str | None, list[list[str]]]:
    """Run tests: the first that fails, and which functions of some modules each of them calls."""
    called: list[set[str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (module := frame.f_globals.get("__name__")) in modules:
            called[-1].add(f"{module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}")

    threading.setprofile(note)
    sys.setprofile(note)
    failed = _first_failure(items, lambda: called.append(set()))
    sys.setprofile(None)
    return failed, [sorted(functions) for functions in called]


class _Trials:
    """A plugin that runs the tests that were collected for each mutant, in a process of its own, on all cores."""

    def __init__(self, chosen: Sequence[Mutant], modules: Sequence[str]) -> None:
        self.found: dict[int, Noticed] = {}
        self.fails_unchanged: str | None = None
        self._chosen = chosen
        self._modules = modules
        self._running: dict[int, int] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try them all. What is imported and collected once is there for all of them."""
        called = self._try_unchanged(session.items)
        if self.fails_unchanged is not None:
            return True
        # Two a core: half of their time is waiting, for threads of the tests and for the disk.
        at_once = 2 * len(os.sched_getaffinity(0))
        for number, mutant in enumerate(self._chosen):
            if len(self._running) == at_once:
                self._reap()
            self._running[_fork(try_out, mutant, _in_order(mutant, session.items, called))] = number
            _show(f"{number} of {len(self._chosen)}", lasts=False)
        while self._running:
            self._reap()
        return True

    def _try_unchanged(self, items: Sequence[pytest.Item]) -> list[set[str]]:
        """Which functions each test calls, as long as nothing is changed."""
        reading, writing = os.pipe()

        def try_out() -> Noticed:
            with open(writing, "w") as pipe:
                json.dump(_functions_called(items, self._modules), pipe)
            return Noticed.BY_NOTHING

        pid = _fork(try_out, patience=UNCHANGED)
        os.close(writing)
        with open(reading) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        failed, called = json.loads(said) if said else ("it ended", [])
        self.fails_unchanged = failed
        return [set(functions) for functions in called]

    def _reap(self) -> None:
        pid, status = os.wait()
        number = self._running.pop(pid)
        noticed = Noticed.BY_HANGING if os.WIFSIGNALED(status) else Noticed(os.waitstatus_to_exitcode(status))
        self.found[number] = noticed
        if noticed is Noticed.BY_NOTHING:
            _show(f"lives: {self._chosen[number].name}")


def _in_order(mutant: Mutant, items: Sequence[pytest.Item], called: Sequence[set[str]]) -> list[pytest.Item]:
    """The tests that call what is changed, those first that call little else; then the others."""
    changed = f"{mutant.module}.{mutant.function}"
    order = sorted(range(len(items)), key=lambda place: (changed not in called[place], len(called[place])))
    return [items[place] for place in order]


def _fork(try_out: Callable[..., Noticed], *arguments: Any, patience: int = PATIENCE) -> int:
    pid = os.fork()
    if pid == 0:
        noticed = Noticed.BY_TESTS
        try:
            signal.setitimer(signal.ITIMER_PROF, patience)
            signal.alarm(3 * patience)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            noticed = try_out(*arguments)
        except Exception:
            noticed = Noticed.BY_SIMULATOR
        finally:
            os._exit(noticed.value)
    return pid


def _show(text: str, *, lasts: bool = True) -> None:
    """Print to stderr, which pytest may capture; what does not last is for a terminal only."""
    if sys.__stderr__ is not None and (lasts or sys.__stderr__.isatty()):
        start, end = ("\r\x1b[K", "\n" if lasts else "") if sys.__stderr__.isatty() else ("", "\n")
        print(f"{start}{text}", end=end, file=sys.__stderr__, flush=True)


def try_all(chosen: Sequence[Mutant], group: Group) -> dict[str, Noticed]:
    """What notices which. What no test notices is printed at once."""
    trials = _Trials(chosen, group.modules)
    files = map(str, group.test_files)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        pytest.main(["--quiet", "--capture=no", "-p", "no:cacheprovider", *files], plugins=[trials])
    if trials.fails_unchanged is not None:
        sys.exit(f"{trials.fails_unchanged} fails although nothing is changed: see `python3 dev.py test core`.")
    return {mutant.name: trials.found[number] for number, mutant in enumerate(chosen)}


# Judging them.


def complaints(found: Mapping[str, Noticed], explained: Mapping[str, str]) -> list[str]:
    """What is wrong with these results."""
    living = {name for name, noticed in found.items() if noticed is Noticed.BY_NOTHING}
    return [
        *(f"noticed by nothing: {name}" for name in found if name in living - explained.keys()),
        *(f"explained, but noticed: {name}" for name in explained if name in found.keys() - living),
        *(f"explained, but there is no such mutant: {name}" for name in explained.keys() - found),
        *(f"explained without a reason: {name}" for name, reason in explained.items() if not reason.strip()),
    ]


# Remembering which were as they should be.


def fingerprints(group: Group, explained: Collection[str]) -> dict[str, str]:
    """What the fate of each function's mutants depends on most, in twelve digits."""
    shared = [_own_text(), *(path.read_text() for path in group.test_files)]
    parts: dict[str, list[str]] = {}
    for module, source in group.sources.items():
        for name, node in _functions(ast.parse(source)):
            function = f"{module.rpartition('.')[2]}.{name}"
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
            # A property may have a setter, which has its name.
            parts.setdefault(function, [name for name in explained if function_of(name) == function]).append(text)
    return {
        function: hashlib.sha256("\0".join([*shared, *texts]).encode()).hexdigest()[:12]
        for function, texts in parts.items()
    }


def _own_text() -> str:
    """This file but for the groups: a module that is added to one of them concerns no function of the others."""
    text = Path(__file__).read_text()
    start = text.index("GROUPS: Final = (")
    return text[:start] + text[text.index("\n)\n", start) :]


def record(found: Mapping[str, Noticed], wrong: Sequence[str], there: Sequence[str], now: Mapping[str, str]) -> None:
    """Write down the functions all of whose mutants were found to be as they should be; forget those that are gone."""
    tried = {function_of(name) for name in found} - {function_of(name) for name in there if name not in found}
    right = {function for function in tried if not any(f": {function}: " in complaint for complaint in wrong)}
    known = tomllib.loads(RECORD.read_text())
    known = {name: known[name] for name in known.keys() & now.keys() - tried} | {name: now[name] for name in right}
    head = "# Functions all of whose mutants were noticed, or are explained; `python3 dev.py mutate` writes this.\n\n"
    text = head + "".join(f'"{name}" = "{mark}"\n' for name, mark in sorted(known.items()))
    if text != RECORD.read_text():
        RECORD.write_text(text)


def main(arguments: Sequence[str]) -> None:
    """Try the mutants that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="", help="only mutants whose name has this in it")
    parser.add_argument("--changed", action="store_true", help="only mutants of functions that the record lacks")
    parser.add_argument("--no-record", action="store_true", help="leave the record as it is, as CI does")
    asked = parser.parse_args(arguments)
    reasons = tomllib.loads(EXPLAINED.read_text())
    now = {function: mark for group in GROUPS for function, mark in fingerprints(group, reasons).items()}
    known = tomllib.loads(RECORD.read_text()) if asked.changed else {}
    as_before = {function for function, mark in known.items() if now.get(function) == mark}
    every = {group: all_mutants(group) for group in GROUPS}
    there = [mutant.name for some in every.values() for mutant in some]
    if not any(asked.name in name for name in there):
        functions = dict.fromkeys(map(function_of, there))
        parser.error(f"no mutant has {asked.name!r} in its name; there are some of {', '.join(functions)}")
    began = time.monotonic()
    os.chdir(ROOT)
    found: dict[str, Noticed] = {}
    for group, some in every.items():
        if chosen := [one for one in some if asked.name in one.name and function_of(one.name) not in as_before]:
            found |= try_all(chosen, group)
    explained = {name: reason for name, reason in reasons.items() if name in found or name not in there}
    wrong = complaints(found, explained)
    if not asked.no_record:
        record(found, wrong, there, now)
    rare = [name for name, noticed in found.items() if noticed is Noticed.BY_HANGING]
    print(
        "\r\x1b[K" if sys.stderr.isatty() else "", *(f"noticed by hanging: {name}" for name in rare), *wrong, sep="\n"
    )
    counts = Counter(found.values())
    cpu = os.times().children_user + os.times().children_system
    print(f"{len(found)} mutants in {time.monotonic() - began:.0f} s ({cpu:.0f} s of processor time):", end=" ")
    print(*(f"{counts[noticed]} {noticed.name.lower().replace('_', ' ')}" for noticed in Noticed), sep=", ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
