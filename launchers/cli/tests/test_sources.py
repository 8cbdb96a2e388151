"""What variables and a file say of the options of `rdzv run`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from rdzv_core.errors import RendezvousParameterError

from rdzv_cli.agent import AgentOptions
from rdzv_cli.agent.routes import Choice, Std
from rdzv_cli.command import main, make_parser
from rdzv_cli.sources import options_of
from rdzv_cli.taking import Taking


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def taken(*line: str, **environ: str) -> Taking:
    return Taking.of(make_parser().parse_args(["run", *line, "--", "true"]), environ)


def configured(text: str, *line: str, **environ: str) -> Taking:
    """What is taken where this is the file."""
    Path("job.toml").write_text(text)
    return taken("--config", "job.toml", *line, **environ)


def test_a_flag_comes_before_a_variable_that_before_the_file_and_that_before_the_platform() -> None:
    agent = "max-restarts = 1\nnproc_per_node = 1"
    text = f'nnodes = "1:2"\nrun_id = "file"\n{agent}\n[option]\nattempt = 7\nnode_name = "f"'
    environ = {"PET_NNODES": "1:8", "PET_MAX_RESTARTS": "9", "PET_NPROC_PER_NODE": "9", "PET_RDZV_ID": "platform"}
    mine = configured(text, "--max-restarts=3", RDZV_MAX_RESTARTS="2", RDZV_RUN_ID="variable", **environ)
    arguments = mine.arguments
    assert (arguments.max_restarts, arguments.run_id, arguments.nnodes, arguments.nproc_per_node) == (
        3,
        "variable",
        "1:2",
        1,
    )
    assert mine.below[0].given == {"options": {"attempt": 7, "node_name": "f"}}


def test_a_file_says_the_options_of_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text('standalone = true\nendpoint = "db"\n[option]\nnode_name = "mine"\nattempt = 2')
    program = ["--", "sh", "-c", "echo $RDZV_OPTIONS"]
    assert main(["run", "--config=job.toml", *program]) == 0
    assert main(["run", "--config=job.toml", "--option", "node_name=flag", *program]) == 0
    out, err = capfd.readouterr()
    assert out == '{"node_name": "mine", "attempt": 2}\n{"node_name": "flag", "attempt": 2}\n'
    assert " node mine." in err


def test_values_of_a_file_are_read_as_those_of_flags() -> None:
    text = """
standalone = true
array = "job"
check = ["port", "disk:/tmp:1"]
ok-exit-code = [5, 8]
signals-to-handle = ["SIGTERM", "SIGINT"]
local-ranks-filter = 0
grace = 2.5
tee = 3
keep-detached = false
pass-exit-code = true
verbose = 1
prefix = ""
"""
    arguments = configured(text).arguments
    options = AgentOptions.of(arguments)
    assert [check.name for check in options.check or ()] == ["port", "disk:/tmp:1"]
    assert (options.ok_exit_code, options.local_ranks_filter, options.grace) == ((5, 8), (0,), 2.5)
    assert (options.keep_detached, options.pass_exit_code, options.prefix) == (False, True, "")
    assert len(options.signals_to_handle) == 2
    assert (arguments.array, arguments.verbose) == ("job", 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max-restart = 1", "has the key 'max-restart', which is no option; did you mean max-restarts?"),
        ("xyz = 1", "has the key 'xyz', which is no option; its keys are the options of rdzv run."),
        ("config = 'b'", "has the key 'config', which is no option; "),
        ("module = true", "has the key 'module', which is no option; "),
        ("run-id = 'a'\nrun_id = 'b'", "has 'run_id' twice, with hyphens and with underscores."),
        ("max-restarts = 'x'", "'max-restarts': 'x' is no whole number from 0 to 999999999."),
        ("max-restarts = [1]", "'max-restarts': a text or a number is expected, not [1]."),
        ("max-restarts = true", "'max-restarts': a text or a number is expected, not True."),
        ("ok-exit-code = [true]", "'ok-exit-code': a text, a number or a list of them is expected, not True."),
        (
            "check = 2000-01-01",
            "'check': a text, a number or a list of them is expected, not datetime.date(2000, 1, 1).",
        ),
        ("standalone = 1", "'standalone': true or false is expected, not 1."),
        ("array = 'x'", "'array': 'x' is not one of sweep, job."),
        ("option = ['a=1']", "has something else than a table, [option], as 'option'."),
        ("nnodes", "is not TOML: "),
        ("nnodes = 'x'", "'nnodes' is 'x'; MIN:MAX, such as 2:4, or one number is expected."),
    ],
)
def test_what_a_file_cannot_say_is_named(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text(text)
    assert main(["run", "--config=job.toml", "--run-id", "x", "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rdzv: The file 'job.toml'")
    assert why in line


def test_an_option_of_the_run_that_is_none_is_named_with_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text("standalone = true\n[option]\njoin_timeot = 2")
    assert main(["run", "--config=job.toml", "--", "true"]) == 2
    assert "knows no option 'join_timeot'. Did you mean 'join_timeout'?" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousParameterError, match=r"^The file 'nowhere.toml' is not there\.$"):
        taken("--config=nowhere.toml")
    with pytest.raises(RendezvousParameterError, match=r"^The file '.*' cannot be read: Is a directory\.$"):
        taken("--config", str(tmp_path))


def test_the_file_has_a_variable() -> None:
    Path("job.toml").write_text('nnodes = 1\nrun-id = "x"')
    assert taken(RDZV_CONFIG="job.toml").arguments.run_id == "x"


VARIABLES: Final = {
    "backend": ("sqlite", "sqlite"),
    "endpoint": ("f", "f"),
    "run_id": ("x", "x"),
    "nnodes": ("1", "1"),
    "standalone": ("1", True),
    "platform": ("none", "none"),
    "array": ("job", "job"),
    "verbose": ("2", 2),
    "nproc_per_node": ("2", 2),
    "max_restarts": ("3", 3),
    "attempt": ("4", 4),
    "master_port": ("29500-29599", "29500-29599"),
    "grace": ("2.5", 2.5),
    "keep_detached": ("1", True),
    "drain": ("auto", 100.0),
    "give_up_after": ("3", 3),
    "hang_timeout": ("60", 60.0),
    "on_drain": ("USR1", signal.SIGUSR1),
    "signals_to_handle": ("TERM,INT", frozenset({signal.SIGTERM, signal.SIGINT})),
    "check": ("port\n\ndisk:/tmp:1", ["port", "disk:/tmp:1"]),
    "check_timeout": ("9", 9.0),
    "check_cooldown": ("8", 8.0),
    "pass_exit_code": ("YES", True),
    "ok_exit_code": ("5,8", (5, 8)),
    "pass_secrets": ("true", True),
    "log_dir": (os.devnull, os.devnull),
    "redirects": ("3", Choice(Std.OUT | Std.ERR)),
    "tee": ("0:1,1:2", Choice(by_rank={0: Std.OUT, 1: Std.ERR})),
    "local_ranks_filter": ("0,2", (0, 2)),
    "prefix": ("${rank}", "${rank}"),
    "log_format": ("json", "json"),
    "role": ("rank", "rank"),
}


def test_every_option_has_a_variable() -> None:
    (commands,) = (action.choices for action in make_parser()._actions if isinstance(action.choices, dict))
    # The address is read with what every node has.
    assert options_of(commands["run"]).keys() == VARIABLES.keys() | {"config", "option", "local_addr"}
    arguments = taken(**{f"RDZV_{name.upper()}": text for name, (text, _) in VARIABLES.items()}).arguments
    found = vars(arguments) | vars(AgentOptions.of(arguments))
    found["check"] = [check.name for check in found["check"]]
    assert {name: found[name] for name in VARIABLES} == {name: value for name, (_, value) in VARIABLES.items()}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("RDZV_STANDALONE", "maybe", "RDZV_STANDALONE: 'maybe' is neither 1 nor 0."),
        ("RDZV_GRACE", "soon", "RDZV_GRACE: 'soon' is no number of seconds, such as 2.5."),
        ("RDZV_ARRAY", "x", "RDZV_ARRAY: 'x' is not one of sweep, job."),
        ("RDZV_PLATFORM", "x", "RDZV_PLATFORM: 'x' is not one of auto, none."),
        ("RDZV_VERBOSE", "much", "RDZV_VERBOSE: 'much' is no whole number"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name: str, text: str, why: str) -> None:
    with pytest.raises(RendezvousParameterError) as refused:
        taken(**{name: text})
    assert str(refused.value).startswith(why)


def test_a_variable_has_the_command_say_more() -> None:
    command = [sys.executable, "-m", "rdzv_cli", "run", "--standalone", "--endpoint=db", "--", "true"]
    ended = [
        subprocess.run(command, env={**os.environ, "RDZV_VERBOSE": verbose}, capture_output=True, text=True, check=True)
        for verbose in ("0", "1")
    ]
    assert ["node arrived: " in each.stderr for each in ended] == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        'endpoint = "a\\u0000b"',
        'log-dir = "a\\u0000b"',
        'role = "a\\u0000b"',
        'check = ["true", "a\\u0000b"]',
        '[option]\nnode_name = "a\\u0000b"',
        '"a\\u0000b" = 1',
    ],
)
def test_a_null_character_in_a_file_is_refused(text: str) -> None:
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' has a null character"):
        configured(f"{text}\n", "--standalone")


def test_keys_in_a_file_may_be_as_deep_as_they_like() -> None:
    with pytest.raises(RendezvousParameterError, match=r"job\.toml' is not TOML: maximum recursion"):
        configured(f"option{'.a' * 20_000} = 1")


def test_two_hyphens_behind_an_equals_sign_are_a_value() -> None:
    assert taken("--standalone", "--role=--", "--prefix=--").arguments.role == "--"
    with pytest.raises(SystemExit):
        taken("--standalone", "--grace=--")
