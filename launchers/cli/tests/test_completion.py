"""What shells complete: what is printed for them is sourced by the real ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from rdzv_conformance.servers import ServiceMissingError, require_service

from rdzv_cli.command import main

ASKS: Final = {
    # The functions that argcomplete defines are called as by the shell at a TAB.
    "bash": """
source "$1"; line=$2
COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
read -ra COMP_WORDS <<< "$line"; [[ $line == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$(complete -p rdzv | sed 's/.*-F \\([^ ]*\\).*/\\1/') rdzv
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz is-at-least; compdef() { }
_describe() { print -l -- ${(P)2} }
source $1; BUFFER=$2 CURSOR=${#2} words=(${=2})
[[ $2 == *" " ]] && words+=("")
_python_argcomplete
""",
    "fish": "source $argv[1]; complete -C $argv[2]",
}


class Shell(str):
    """The name of one, which may not be on this machine."""

    def find_binary(self) -> None:
        """See whether it is here."""
        if shutil.which(self) is None:
            raise ServiceMissingError(f"No {self} on this machine. Run `python3 dev/tools/services.py install shells`.")


@pytest.fixture(params=ASKS)
def shell(request: pytest.FixtureRequest) -> str:
    require_service(Shell(request.param))
    return str(request.param)


def completed(shell: str, line: str, folder: Path) -> list[str]:
    """What a shell offers for the last word of a line, without descriptions."""
    script = folder / "script"
    with script.open("w") as file:
        subprocess.run([sys.executable, "-m", "rdzv_cli", "completion", shell], stdout=file, check=True)
    (folder / "rdzv").write_text(f'#!/bin/sh\nexec {sys.executable} -m rdzv_cli "$@"\n')
    (folder / "rdzv").chmod(0o755)
    (folder / "job.toml").touch()
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    name = [] if shell == "fish" else ["test"]
    command = [shell, *bare, "-c", ASKS[shell], *name, str(script), line]
    ended = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return [word.partition("\t")[0].partition(":")[0].strip() for word in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("rdzv ", {"run", "status", "completion"}, {"job.toml"}),
        ("rdzv ru", {"run"}, {"status"}),
        ("rdzv run --n", {"--nnodes", "--nproc-per-node", "--no-python"}, {"--node-rank"}),
        ("rdzv run --backend ", {"sqlite"}, {"job.toml"}),
        ("rdzv run --platform ", {"auto", "none"}, {"job.toml"}),
        ("rdzv run --config j", {"job.toml"}, {"auto"}),
        ("rdzv run --nproc-per-node 2 --log-format ", {"text", "json"}, {"2"}),
        ("rdzv completion ", {"bash", "zsh", "fish"}, {"job.toml"}),
    ],
)
def test_a_shell_offers_what_may_come_next(
    shell: str, line: str, offered: set[str], not_offered: set[str], tmp_path: Path
) -> None:
    found = set(completed(shell, line, tmp_path))
    assert offered <= found
    assert not not_offered & found


def test_without_the_library_the_message_names_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv_cli.completion.find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'rdzv-cli[completion]'" in capsys.readouterr().err
    # A shell that still asks is not answered with an error of the command's.
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    with pytest.raises(SystemExit):
        main(["--version"])


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'tcsh' is not one of bash, zsh, fish" in capsys.readouterr().err
