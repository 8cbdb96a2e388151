"""No interrupt keeps a lock: what is entered by ``with`` is a lock, which is a step of the interpreter's own.

Between `Condition.__enter__`, which is Python, and the block behind it an interrupt leaves the lock taken for good; so
it does between `acquire` and a ``try``. `rdzv_core.alone` says how a lock with a timeout is left.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for pattern in ("*/src", "*/*/src") for path in ROOT.glob(pattern))

ACQUIRED = {
    "alone.py": 1,
    "database.py": 3,
    "forks.py": 1,
    "handler.py": 1,
    "line.py": 2,
}
"""Where locks are taken by `acquire`, and how often. The list may only get shorter, and its numbers smaller."""


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def conditions_of(tree: ast.AST) -> Iterator[str]:
    """What conditions are called in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value.func) == "Condition":
            yield from map(_name, node.targets)


def entered(tree: ast.AST, conditions: set[str]) -> list[int]:
    """The lines in which one of those is entered."""
    withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    return [node.lineno for node in withs if conditions & {_name(item.context_expr) for item in node.items}]


def acquired(tree: ast.AST) -> int:
    """How often a lock is taken by `acquire`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(called, ast.Attribute) and called.attr == "acquire" for called in calls)


def test_no_condition_is_entered() -> None:
    found = []
    for source in SOURCES:
        trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
        # A class may enter what the one below it has made.
        conditions = {name for tree in trees.values() for name in conditions_of(tree)}
        found += [f"{path.relative_to(ROOT)}:{line}" for path in trees for line in entered(trees[path], conditions)]
    assert not found, f"these enter a condition; enter its lock, as `Turns` does: {found}"


def test_few_locks_are_taken_by_a_call() -> None:
    counts = {path.name: acquired(ast.parse(path.read_text())) for root in SOURCES for path in root.rglob("*.py")}
    assert {name: count for name, count in counts.items() if count} == ACQUIRED


def test_what_is_found() -> None:
    tree = ast.parse(
        dedent("""
        class Waits:
            def __init__(self):
                self._lock = threading.RLock()
                self._changed = threading.Condition(self._lock)

            def wait(self):
                with self._lock, self._changed:
                    pass
                with self._lock:
                    self._changed.wait()
                if self._lock.acquire(timeout=1):
                    self._lock.release()
        """)
    )
    assert [*conditions_of(tree)] == ["_changed"]
    assert entered(tree, {"_changed"}) == [8]
    assert acquired(tree) == 1
