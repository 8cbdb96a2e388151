"""Nothing of PyTorch's rendezvous is without an answer here, and what is new in a torch is named."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = "torch_names"

DYNAMIC = """
from dataclasses import dataclass
from .api import RendezvousParameters
__all__ = ["DynamicRendezvousHandler", "RendezvousSettings", "create_handler"]

@dataclass
class RendezvousSettings:
    run_id: str
    min_nodes: int
    max_nodes: int

class DynamicRendezvousHandler:
    @classmethod
    def from_backend(cls, run_id, store, backend, min_nodes, max_nodes): ...
    def next_rendezvous(self): ...
    def _private(self): ...

class _Private: ...

def _timeout(params, name): ...

def create_handler(store, backend, params):
    _timeout(params, "join")
    params.get_as_int("keep_alive_interval", 5)
"""
"""A part of a torch in which nothing is new."""

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a folder of packages with a torch."""

    def make(dynamic: str = DYNAMIC, **modules: str) -> Path:
        package = tmp_path / "torch" / "distributed" / "elastic" / "rendezvous"
        package.mkdir(parents=True)
        for name, source in {"__init__": "", "dynamic_rendezvous": dynamic, **modules}.items():
            (package / f"{name}.py").write_text(source)
        (tmp_path / "torch" / "_C").mkdir()
        stub = "class Store:\n    def set(self, key: str, value: str) -> None: ...\nclass Work: ...\n"
        (tmp_path / "torch" / "_C" / "_distributed_c10d.pyi").write_text(stub)
        (tmp_path / "torch" / "version.py").write_text("__version__ = '9.9'\n")
        return tmp_path

    return make


def new(tool: Any, folder: Path) -> list[str]:
    """What a torch has that is new."""
    answers = tool.read_answers(tool.ANSWERS.read_text())
    return list(tool.unanswered(tool.read_torch(folder), tool.PAGE.read_text(), answers))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_torch_of_this_environment_has_nothing_new() -> None:
    command = [sys.executable, str(ROOT / "dev" / "tools" / "torch_names.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all answered for" in done.stdout


def test_what_is_known_is_not_new(tool: Any, make: Make) -> None:
    assert new(tool, make()) == []


@pytest.mark.parametrize(
    ("old", "changed", "named"),
    [
        ("class _Private", "class RendezvousLease", None),
        ('"create_handler"]', '"create_handler", "RendezvousLease"]', "RendezvousLease: the page has no such name"),
        ("def _private", "def pause", "DynamicRendezvousHandler.pause: there is no"),
        ("max_nodes: int\n", "max_nodes: int\n    patience: int\n", "has no parameter 'patience'"),
        ("min_nodes: int\n    max_nodes: int", "max_nodes: int\n    min_nodes: int", "at another place"),
        ("min_nodes, max_nodes)", "min_nodes, max_nodes, *, patience=0)", "from_backend has no parameter 'patience'"),
        ('params, "join"', 'params, "last_words"', "option last_words_timeout: the page has no such option"),
        ('"keep_alive_interval"', '"patience"', "option patience: the page has no such option"),
        ("params.get_as_int(", "params.config.get(", None),
        ('params.get_as_int("keep_alive_interval", 5)', 'params.config["patience"]', "option patience"),
    ],
)
def test_what_is_new_is_named(tool: Any, make: Make, old: str, changed: str, named: str | None) -> None:
    assert old in DYNAMIC
    found = new(tool, make(DYNAMIC.replace(old, changed)))
    assert [named in line for line in found] == [True] if named else found == []


def test_a_new_module_and_a_new_method_of_the_store_are_named(tool: Any, make: Make) -> None:
    folder = make(quorum="def join(params): ...\n", _private="def join(params): ...\n")
    stub = folder / "torch" / "_C" / "_distributed_c10d.pyi"
    stub.write_text(stub.read_text().replace("class Work", "    def rename(self, key: str) -> None: ...\nclass Work"))
    assert [line.partition(":")[0] for line in new(tool, folder)] == ["quorum.join", "torch.distributed.Store.rename"]


def test_every_reason_is_for_something(tool: Any) -> None:
    if (spec := find_spec("torch")) is None or spec.origin is None:
        pytest.skip("torch is not installed")
    torch = tool.read_torch(Path(spec.origin).parent.parent)
    known = {*torch.names, *(f"option {name}" for name in torch.options)}
    assert tool.read_answers(tool.ANSWERS.read_text()) <= known
