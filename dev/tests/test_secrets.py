"""Nothing that `rdzv run` starts gets the password, unless that is asked for."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rdzv

from .agents import Agents, program

ROOT = Path(__file__).parents[2]

PLUGIN = """
from rdzv_core import BackendPlugin, Option, parse_options
from rdzv import RendezvousParameterError, RendezvousParameters
from rdzv_sqlite import SqliteBackend

OPTIONS = (Option("password", "text", None, "What opens it.", secret=True),)

class Locked(SqliteBackend):
    name = "locked"

def create(params):
    if parse_options(params.config, OPTIONS)["password"] [::-1] != "2retnuh":
        raise RendezvousParameterError("This password does not open it.")
    return Locked(params.endpoint, params.run_id), None

BACKEND = BackendPlugin("A database behind a password.", OPTIONS, create, Locked)
"""

LOOK = """
import json, os, pathlib, sys, rdzv
guard = pathlib.Path(f"/proc/{os.getppid()}")
agent = guard.parent / guard.joinpath("stat").read_text().rpartition(")")[2].split()[1]
command, guards_command = [(process / "cmdline").read_text().split("\\0") for process in (agent, guard)]
guard = [(guard / "environ").read_text(), guards_command] if "programs/guard.py" in str(guards_command) else []
pathlib.Path(sys.argv[1]).write_text(json.dumps([dict(os.environ), command, guard]))
# A handler, and so a connection, of its own.
rdzv.get_rendezvous_handler(rdzv.config.from_env()).leave()
print("the program could log in")
"""
"""Writes what it can see of the agent, then connects to the service."""


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """Agents on a backend that wants a password."""
    packages = tmp_path / "packages"
    info = packages / "rdzv_locked-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "rdzv_locked.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv-locked\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rdzv]\nlocked = rdzv_locked:BACKEND\n")
    path = f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    with contextlib.closing(Agents("locked", str(tmp_path / "rdzv.db"))) as agents:
        yield agents


def _secret_file(folder: Path) -> Path:
    path = folder / "password"
    path.write_text("hunter2\n")
    path.chmod(0o600)
    return path


def _look(folder: Path) -> tuple[list[str], str]:
    """A program that looks for the secret, and where it writes what it has seen."""
    seen = folder / "seen.json"
    return [*program(folder, LOOK), str(seen)], str(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
class TestPrograms:
    def test_read_the_file_and_see_no_secret(self, locked: Agents, tmp_path: Path) -> None:
        look, seen = _look(tmp_path)
        options = {"password_file": _secret_file(tmp_path)}
        node = locked.start(*look, nnodes="1", options=options, environment={"RDZV_PASSWORD": "hunter2"})
        assert node.ends() == 0, node.said
        assert "the program could log in" in node.said
        environ, command, guard = json.loads(Path(seen).read_text())
        assert "password_file" in environ["RDZV_OPTIONS"]
        assert len(guard) == 2
        assert "hunter2" not in json.dumps([environ, command, guard])

    @pytest.mark.parametrize("way", ["variable", "option", "RDZV_OPTIONS"])
    def test_learn_why_they_have_none(self, locked: Agents, tmp_path: Path, way: str) -> None:
        look, seen = _look(tmp_path)
        environments = {"variable": {"RDZV_PASSWORD": "hunter2"}, "RDZV_OPTIONS": {"RDZV_OPTIONS": "password=hunter2"}}
        environment = environments.get(way)
        options = {"password": "hunter2"} if way == "option" else {}
        node = locked.start(*look, nnodes="1", options=options, environment=environment)
        assert node.ends() == 1
        assert "--pass-secrets" in node.said
        # The command line shows it for good, and the agent says so.
        assert ("every user of this machine can read the password" in node.said) == (way == "option")
        environ, command, guard = json.loads(Path(seen).read_text())
        assert "hunter2" not in json.dumps([environ, guard])
        assert ("hunter2" in json.dumps(command)) == (way == "option")
        assert "hunter2" not in node.said

    @pytest.mark.parametrize("way", ["variable", "RDZV_OPTIONS"])
    def test_get_it_where_that_is_asked_for(self, locked: Agents, tmp_path: Path, way: str) -> None:
        look, _ = _look(tmp_path)
        environment = {"RDZV_PASSWORD": "hunter2"} if way == "variable" else {"RDZV_OPTIONS": "password=hunter2"}
        node = locked.start(*look, nnodes="1", arguments=("--pass-secrets",), environment=environment)
        assert node.ends() == 0, node.said
        assert "the program could log in" in node.said
        assert "hunter2" not in node.said


def test_the_command_line_overrules_the_secret_of_the_environment(locked: Agents, tmp_path: Path) -> None:
    environment = {"RDZV_OPTIONS": "password=wrong"}
    options = {"password_file": _secret_file(tmp_path)}
    node = locked.start("true", nnodes="1", options=options, environment=environment)
    assert node.ends() == 0, node.said


@pytest.mark.parametrize("backend", rdzv.installed_backends())
def test_what_sounds_like_a_secret_is_declared_as_one(backend: str) -> None:
    options = rdzv.load_backend_plugin(backend).options
    readme = {path.parent.name: path.read_text() for path in ROOT.glob("plugins/*/README.md")}
    for option in options:
        assert option.secret == bool(re.search("password|token|secret|credential", option.name)), option
        if option.secret:
            assert f"`{option.name}_file`" in readme.get(backend, readme["etcd-v2"])


def test_a_secret_is_shown_by_no_command(locked: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDZV_PASSWORD", "hunter2")
    for command in (("status",), ("status", "-vv"), ("close", "--purge")):
        said = locked.command(*command)
        assert said.returncode in (0, 2, 11), said.stderr
        assert "hunter2" not in said.stdout + said.stderr
