"""The documentation does what it says: every block that can run is run, page by page, in the order of reading.

A ``python`` block is a program of its own, a ``sh`` block a script; both must end with exit code 0. In a
``console`` block each ``$ command`` must say what stands below it: ``...`` is anything, white space counts for
nothing. The blocks of a page share a folder. A comment in front of a block says otherwise:

    <!-- file: hello.py -->        a file of that name, to be used by the blocks that follow
    <!-- needs: etcd-v3 -->        runs where that service is installed, with its endpoint for the one that is shown
    <!-- needs: slurm -->          runs where Slurm is installed, which has three nodes
    <!-- part of: path -->         only shown: a part of that file of the repository, at any depth of indentation
    <!-- installs: who runs it --> run by test_install.py, in an environment of its own
    <!-- not run: the reason -->   only shown
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rdzv_conformance.servers import EtcdServer, require_service
from tools.slurm import Slurm

ROOT = Path(__file__).parent.parent
READMES = [ROOT / folder / "README.md" for folder in (".", "engine", "launchers/cli")]
PAGES = [*sorted(ROOT.glob("docs/*.md")), *READMES]
LONG = {ROOT / "docs" / "recipes.md"}
TIMEOUT = 120.0

_BLOCK = re.compile(
    r"(?:^<!-- (file|needs|part of|installs|not run): ([^\n]+) -->\n)?^```(python|sh|console|toml)\n(.*?)^```$",
    re.M | re.S,
)
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n((?:(?!\$ ).*\n)*)", re.M)
_SHOWN_ENDPOINT = re.compile(r"\bhost1:2379(,host\d:2379)*")


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, text and line, and what the comment in front of it says."""

    language: str
    text: str
    line: int
    mark: str
    value: str


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.soak if page in LONG else ()) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_blocks_do_what_the_page_says(
    page: Path, tmp_path: Path, subtests: pytest.Subtests, request: pytest.FixtureRequest
) -> None:
    if page == ROOT / "README.md":
        (tmp_path / "examples").symlink_to(ROOT / "examples")  # it is read in a clone
    for block in read_blocks(page):
        with subtests.test(f"{page.name}:{block.line}"):
            if block.mark == "file":
                (tmp_path / block.value).write_text(block.text)
            elif block.mark == "needs":
                endpoint = request.getfixturevalue(block.value)
                run_block(block, _SHOWN_ENDPOINT.sub(endpoint, block.text), tmp_path)
            elif block.mark == "part of":
                assert is_part(block.text, (ROOT / block.value).read_text()), f"{block.value} says something else."
            elif block.mark not in ("installs", "not run"):
                run_block(block, block.text, tmp_path)


@pytest.fixture(name="etcd-v3", scope="module")
def etcd_v3() -> Iterator[str]:
    """The endpoint of a real etcd."""
    require_service(EtcdServer)
    with EtcdServer() as server:
        yield server.get_endpoint()


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real Slurm; it has no endpoint."""
    require_service(Slurm)
    with Slurm() as slurm:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        yield ""


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    text = page.read_text()
    return [
        Block(match[3], match[4], text.count("\n", 0, match.start(3)) + 1, match[1] or "", match[2] or "")
        for match in _BLOCK.finditer(text)
    ]


def is_part(shown: str, text: str) -> bool:
    """Whether a text has the lines that a page shows, at any depth of indentation."""
    return any(textwrap.indent(shown, " " * depth) in text for depth in (0, 4, 8))


def run_block(block: Block, text: str, folder: Path) -> None:
    """Run a block and check what it did."""
    if block.language == "python":
        program = folder / "block.py"
        # Line numbers in a traceback are then those of the page.
        program.write_text("\n" * block.line + text)
        succeed([sys.executable, str(program)], folder)
    elif block.language == "sh":
        succeed(["bash", "-euo", "pipefail", "-c", text], folder)
    elif block.language == "console":
        commands = _COMMAND.findall(text)
        assert commands, "A console block needs a line that begins with a $."
        for command, shown in commands:
            _, output = run(["bash", "-c", command.replace("\n> ", "\n")], folder)
            if not says(output, shown):
                pytest.fail(f"$ {command}\n{output}\nThe page shows:\n{shown}", pytrace=False)
    else:
        pytest.fail(f"A {block.language} block cannot be run: mark it as a file.", pytrace=False)


def says(output: str, shown: str) -> bool:
    """Whether the output is what the page shows."""
    pattern = re.sub(r"(?:\\ )?\\\.\\\.\\\.(?:\\ )?", ".*?", re.escape(" ".join(shown.split())))
    return re.fullmatch(pattern, " ".join(output.split())) is not None


def succeed(command: list[str], folder: Path) -> None:
    """Run a command that must end with exit code 0."""
    code, output = run(command, folder)
    if code != 0:
        pytest.fail(f"Exit code {code}. It said:\n{output}", pytrace=False)


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command like a user who has just logged in; returns its exit code and what it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RDZV_", "PYTHON"))}
    environment = inherited | {
        # The embedded default keeps its database there.
        "TMPDIR": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        # The simulator is not a package that can be installed.
        "PYTHONPATH": str(ROOT / "engine" / "tests"),
        "PYTHONWARNINGS": "error",
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            kill_group(process)
            output, _ = process.communicate()
            pytest.fail(f"It did not end within {TIMEOUT:.0f} s. It said:\n{output}", pytrace=False)
        finally:
            kill_group(process)
    return process.returncode, output


def kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
