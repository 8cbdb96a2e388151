"""No interrupt keeps a lock: what is entered by ``with`` is a lock, which up to Python 3.13 takes one instruction.

Between `Condition.__enter__`, which is Python, and the block behind it an interrupt leaves the lock taken for good; so
it does between `acquire` and a ``try``. `rdzv_transport.alone` says how a lock with a timeout is left. What is not
found: context managers of our own that hold a lock.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
TREES = {
    path: ast.parse(path.read_text())
    for pattern in ("*/src", "*/*/src")
    for source in sorted(ROOT.glob(pattern))
    for path in sorted(source.rglob("*.py"))
}

ACQUIRED = {
    "engine/src/rdzv/engine/handler.py": 1,  # not waited for
    "plugins/c10d/src/rdzv_c10d/line.py": 3,  # a signal's handler that closes it finds it taken, and cuts the call
    "plugins/c10d/src/rdzv_c10d/locator.py": 1,
    "plugins/sqlite/src/rdzv_sqlite/database.py": 4,  # a signal's handler that writes amid a write is refused; forks
    "plugins/transport/src/rdzv_transport/alone.py": 1,
    "plugins/transport/src/rdzv_transport/forks.py": 1,  # around a fork
}
"""Where locks are taken by `acquire`, and how often. The list may only get shorter, and its numbers smaller."""


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def conditions_of(tree: ast.AST) -> Iterator[str]:
    """What a module calls a condition: what has `Condition` in its value or its annotation."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.arg) or "Condition" not in map(_name, ast.walk(node)):
            continue
        if isinstance(node, ast.arg):
            yield node.arg
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from map(_name, target.elts if isinstance(target, ast.Tuple) else [target])


def entered(tree: ast.AST, conditions: set[str]) -> list[int]:
    """The lines in which one of those is entered."""
    withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    return [node.lineno for node in withs if conditions & {_name(item.context_expr) for item in node.items}]


def acquired(tree: ast.AST) -> int:
    """How often a lock is taken by `acquire`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(called, ast.Attribute) and called.attr == "acquire" for called in calls)


def test_no_condition_is_entered() -> None:
    # One class may enter what another, of another package, has made.
    conditions = {name for tree in TREES.values() for name in conditions_of(tree)}
    found = [f"{path.relative_to(ROOT)}:{line}" for path, tree in TREES.items() for line in entered(tree, conditions)]
    assert not found, f"these enter a condition; enter its lock, as `Turns` does: {found}"


def test_few_locks_are_taken_by_a_call() -> None:
    counts = {str(path.relative_to(ROOT)): count for path, tree in TREES.items() if (count := acquired(tree))}
    assert counts == ACQUIRED


def test_what_is_found() -> None:
    tree = ast.parse(
        dedent("""
        class Waits:
            quiet: Final = threading.Condition()

            def __init__(self):
                self._lock = threading.RLock()
                self._changed, self._taken = threading.Condition(self._lock), False

            def wait(self, on: threading.Condition):
                with self._lock, self._changed:
                    pass
                with on:
                    pass
                with self._lock:
                    self._changed.wait()
                if self._lock.acquire(timeout=1):
                    self._lock.release()
        """)
    )
    assert {*conditions_of(tree)} == {"quiet", "_changed", "_taken", "on"}
    assert entered(tree, {"_changed", "on"}) == [10, 12]
    assert acquired(tree) == 1
