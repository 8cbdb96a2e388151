"""The command refuses what it cannot run, with exit code 2 and why; what breaks in an agent is reported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_conformance.chaos.command import main
from rdzv_conformance.deadlines import eventually

COMMAND = (sys.executable, "-m", "rdzv_conformance.chaos", "--backend", "sqlite", "--minutes", "0.05")


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line of what the command says when it refuses."""
    try:
        code: object = main(["--backend", "sqlite", "--minutes", "0.05", *arguments])
    except SystemExit as error:
        code = error.code
    said = capfd.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--option", "foo"], "'foo' is not NAME=VALUE"),
        (["--option", "attempt=1"], "'attempt' is no option"),
        (["--option", "nosuch=1"], "knows no option 'nosuch'"),
        (["--option", "join_timeout=soon"], "cannot be 'soon'"),
        (["--nnodes", "5:2"], "argument --nnodes: nnodes is '5:2'; MIN:MAX, such as 2:4"),
        (["--nnodes", "0:0"], "is expected, with 1 <= MIN <= MAX"),
        (["--nnodes", "a:b"], "argument --nnodes: nnodes is 'a:b'; MIN:MAX"),
        (["--agents", "3"], "3 agents form no world"),
        (["--endpoint", "/nonexistent/dir/x.db"], "no folder '/nonexistent/dir'"),
        (["--server", "os:getcwd"], "which has no __enter__"),
        (["--server", "os:sep"], "cannot be called"),
        (["--endpoint", "x.db", "--server", "os:getcwd"], "not allowed with argument"),
        *(
            ([option, text], f"{text!r} is not a number above 0")
            for option in ("--ttl", "--bound")
            for text in ("0", "-3")
        ),
        *((["--minutes", text], f"{text!r} is not a number above 0") for text in ("0", "-1", "nan", "inf")),
    ],
)
def test_a_mistake_of_the_users_is_no_violation(
    capfd: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert says in refused(capfd, *arguments)


def test_what_is_no_folder_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made a folder" in refused(capfd, "--keep", str(tmp_path / "file"))
    assert "cannot be made a folder" in refused(capfd, "--keep", str(tmp_path / "file" / "below"))


def test_a_run_that_is_refused_claims_no_folder(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused(capfd, "--keep", str(tmp_path / "kept"), "--option", "nosuch=1")
    assert not (tmp_path / "kept").exists()


def test_of_two_runs_at_once_one_has_the_folder(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with subprocess.Popen([*COMMAND, "--keep", str(kept)], stdout=subprocess.PIPE, text=True) as first:
        eventually(lambda: (kept / "chaos.jsonl").exists(), "the first run to have its folder", 60)
        assert "another run uses it" in refused(capfd, "--keep", str(kept))
        said, _ = first.communicate(timeout=200)
    assert first.returncode == 0, said


def test_an_error_in_an_agent_is_reported(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: object) -> None:
        raise OSError("no such luck")

    # Agents are forked from this process.
    monkeypatch.setattr("rdzv_conformance.chaos.agent.Agent.__init__", breaks)
    assert main(["--backend", "sqlite", "--minutes", "0.05"]) == 1
    assert re.search(r"agent\d broke: Traceback (.|\n)*no such luck", capfd.readouterr().out)
