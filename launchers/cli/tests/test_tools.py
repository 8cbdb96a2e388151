"""A tool of the system that hangs holds no agent up, even if it cannot be killed."""

import subprocess

import pytest

from rdzv_cli.agent import tools


def test_a_tool_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: tried.append(self))
    monkeypatch.setattr(tools, "KILLED", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        tools.output_of(["sleep", "600"], 0.1)
    monkeypatch.undo()
    (tool,) = tried
    tool.kill()
    tool.wait()


def test_a_tool_that_fails_says_nothing() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        tools.output_of(["sh", "-c", "echo half; exit 3"], 60)
    assert tools.output_of(["echo", "all"], 60) == "all\n"
