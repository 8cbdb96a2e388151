"""What the suite has: an entry for each test, made of the test itself, for the page "The tests of a backend"."""

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

from .suite import BackendConformance
from .suite.network import NetworkConformance
from .suite.traps import LOOK_AT

_BROUGHT: Final = {
    "harness": "the fixture `server`",
    "harness_nodes": "the fixture `server`",
    "ensemble": "the fixture `cluster`",
    "locked": "the fixture `secured`",
    "proxy": "the fixture `proxy`",
}
"""What an author brings for a fixture of the suite."""


@dataclass(frozen=True)
class TestEntry:
    """One test.

    Attributes:
        topic: The file of the suite in which it stands.
        name: The function's.
        checks: Its docstring.
        needs: What it is about, or needs of the class that is tried, in words.
        limits: What it allows, or gives a call: each number with what it is.
        look_at: Headings of the page "Writing a backend": what is usually behind a failure.
    """

    __test__ = False

    topic: str
    name: str
    checks: str
    needs: tuple[str, ...]
    limits: tuple[str, ...]
    look_at: tuple[str, ...]


def entries() -> list[TestEntry]:
    """An entry for each test of the suite, in the order in which they run."""
    return [
        _entry(part.__module__.rpartition(".")[2], test)
        for part in [*_parts(), NetworkConformance]
        for name, test in vars(part).items()
        if name.startswith("test_") and isinstance(test, FunctionType)
    ]


def page() -> str:
    """All entries, as Markdown."""
    lines, topic = [], ""
    for entry in entries():
        if entry.topic != topic:
            topic = entry.topic
            lines += [f"## {topic}", ""]
        links = ", ".join(f"[{one}](writing-a-backend.md#{anchor(one)})" for one in entry.look_at)
        lines += [f"### {entry.name}", "", entry.checks, ""]
        lines += [f"* Needs {', '.join(entry.needs)}."] if entry.needs else []
        lines += [f"* {limit}" for limit in entry.limits]
        lines += [f"* If it fails, look at {links}.", ""]
    return "\n".join(lines)


def look_at(topic: str, test: str) -> tuple[str, ...]:
    """The headings of the page "Writing a backend" that say what is usually behind a failure of a test."""
    return LOOK_AT.get(test) or LOOK_AT.get(topic, ())


def anchor(heading: str) -> str:
    """The end of a link to a heading."""
    return heading.lower().replace(" ", "-")


def _parts() -> Iterator[type]:
    """The classes of the suite that have tests, in the order in which pytest runs them."""
    # pytest runs the tests of the last base first.
    return reversed([one for one in BackendConformance.__mro__ if one.__module__.startswith(f"{__package__}.suite.")])


def _entry(topic: str, test: FunctionType) -> TestEntry:
    marks = getattr(test, "pytestmark", [])
    needs = [f"`{mark.args[0].name}`" for mark in marks if mark.name == "rdzv_requires"]
    needs += [f"a backend without `{mark.args[0].name}`" for mark in marks if mark.name == "rdzv_lacks"]
    needs += [what for fixture, what in _BROUGHT.items() if fixture in inspect.signature(test).parameters]
    limits = (f"{value:g}: {what}" for value, what in _limits(test, set()).items())
    name = test.__name__
    return TestEntry(topic, name, inspect.getdoc(test) or "", tuple(needs), tuple(limits), look_at(topic, name))


def _limits(function: Callable[..., Any], seen: set[str]) -> dict[float, str]:
    """The numbers that a function uses, itself or by what it calls in its file, each with its docstring."""
    module = sys.modules[function.__module__]
    described, found = _described(module), dict[float, str]()
    for name in sorted(_names(function) - seen):
        seen.add(name)
        value = getattr(module, name, None)
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found |= _limits(value, seen)
        elif isinstance(value, int | float) and name in described:
            found[value] = described[name]
    return found


def _names(function: Callable[..., Any]) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _described(module: ModuleType) -> dict[str, str]:
    """The names of a module that have a docstring of their own, and it."""
    body, found = ast.parse(inspect.getsource(module)).body, {}
    for one, after in itertools.pairwise(body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            found[one.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found
