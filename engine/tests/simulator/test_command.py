"""The command does what its help and the documentation say."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .command import main
from .connection import LEVELS

TESTS = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "simulator")

RUN_AND_TELL_ALL = """
import logging, sys
from dataclasses import replace
from rdzv_core.envelope import Envelope
from simulator import Plan, Simulation
from simulator.connection import written

logging.disable()
for seed in range(10):
    simulation = Simulation(replace(Plan.draw(seed), level=sys.argv[1]))
    context = simulation.context
    judge = context.service.wrote

    def wrote(key, value):
        for name, data in written(sys.argv[1], key, value):
            if data and key not in context.litter:
                seen = Envelope.unpack(data)  # without its nonce, which is meant to be unique
                print(context.timeline.now, name, seen.writer, seen.epoch, seen.payload)
        judge(key, value)

    context.service.wrote = wrote
    simulation.run()
    print(context.trace, simulation.steps, context.service.calls)
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=TESTS, capture_output=True, text=True, timeout=280, check=False)


def test_no_violation() -> None:
    done = simulate("--seeds", "0:100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"100 seeds, [\d,]+ steps, [\d,]+ rounds, 0 violations, ", done.stdout)


@pytest.mark.soak
def test_violation_is_reported_with_its_exit_code() -> None:
    done = simulate("--bug", "no-exclusivity", "--seeds", "0:20")
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.search(r"seed (\d+): invariant 2: ", done.stdout)
    assert found
    assert f"Again: python3 dev.py simulate --seed {found[1]} --bug no-exclusivity" in done.stdout


@pytest.mark.parametrize("level", LEVELS)
def test_seed_reproduces_its_run_to_the_byte(level: str) -> None:
    # Sets and their like have another order in each of these processes.
    told = [
        subprocess.run(
            [sys.executable, "-c", RUN_AND_TELL_ALL, level],
            cwd=TESTS,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=280,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert b"round 1 is published" in told[0]
    assert told[0] == told[1]


def test_one_seed_prints_its_trace() -> None:
    done = simulate("--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ +\d+\.\d{3}  n\d is rank 0 of \d in round 1$", done.stdout, re.M)


def heed_ctrl_c() -> None:
    """What runs in the background ignores it, and so does whatever is started there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_search_shows_what_it_does_and_ends_with_ctrl_c() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--minutes", "60"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as search:
        os.close(theirs)
        shown = ""
        while not re.search(r"\r\S*[1-9]\d* seeds, [\d,]+ steps, .* violations, [\d,]+ steps/s, 35\d\d s left", shown):
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 4096).decode()
        # As a terminal does it: to all processes at once.
        os.killpg(search.pid, signal.SIGINT)
        out, _ = search.communicate(timeout=60)
        shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert search.returncode == 0
    assert re.match(r"[1-9][\d,]* seeds, [\d,]+ steps, [\d,]+ rounds, 0 violations, ", out)
    assert shown.endswith("Ctrl-C has ended the search early.\r\n")
    assert "Traceback" not in shown


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the first worker in /proc")
def test_ctrl_c_before_the_first_result_is_quiet() -> None:
    with subprocess.Popen(
        [*COMMAND, "--minutes", "60"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as search:
        # Its workers are being imported when there are any.
        deadline = time.monotonic() + 60
        while "spawn_main" not in command_lines_of_children(search.pid):
            assert time.monotonic() < deadline, "no worker has started"
            time.sleep(0.01)
        os.killpg(search.pid, signal.SIGINT)
        out, err = search.communicate(timeout=60)
    assert (search.returncode, out, err) == (130, "", "")


def command_lines_of_children(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return " ".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "5:2"], "'5:2' has no seed in it"),
        (["--seeds", "0:0"], "'0:0' has no seed in it"),
        (["--seeds", "a:b"], "'a:b' is not A:B"),
        (["--seeds", "5"], "'5' is not A:B"),
        *((["--minutes", text], f"{text!r} is not a number above 0") for text in ("0", "-1", "nan", "inf", "x")),
        *(
            ([option, text], f"{text!r} is not a whole number")
            for option in ("--nodes", "--jobs")
            for text in ("0", "-1")
        ),
        (["--nodes", "10", "--bug", "no-exclusivity"], "--bug is not for --nodes"),
        (["--nodes", "10", "--jobs", "1"], "--jobs is for many seeds only"),
        (["--seed", "7", "--jobs", "1"], "--jobs is for many seeds only"),
        (["--seed", "7", "--level", "leases"], "--level is for --nodes and --trips only"),
        (["--trips", "2", "--level", "register"], "--level register is not for --trips"),
        (["--trips", "2", "--jobs", "1"], "--jobs is for many seeds only"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert says in capsys.readouterr().err


def test_round_trips_are_printed() -> None:
    done = simulate("--trips", "2", "--level", "leases")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("R, W: ")
    assert done.stdout.splitlines()[-1].startswith("| 2 | 3.0 | 3.0 |")


def test_gathering_prints_what_it_costs() -> None:
    done = simulate("--nodes", "10", "40", "--level", "leases")
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout.splitlines()
    assert "calls/node" in head
    assert [row.split()[:2] for row in rows] == [["10", "leases"], ["40", "leases"]]
