"""The comparison runs, in miniature: real nodes, real services, real tables."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rdzv_conformance.servers import ZooKeeperServer, require_service

from .agents import wait_until

ROOT = Path(__file__).parents[2]


def bench(out: Path, *arguments: str) -> str:
    """Run the comparison; the text of its report."""
    command = [sys.executable, "-m", "bench", "--out", str(out), "--patience", "0", *arguments]
    return subprocess.run(command, cwd=ROOT / "dev", capture_output=True, text=True, check=True, timeout=200).stdout


Figures = dict[tuple[str, str, int], tuple[list[float], list[str]]]


def figures(out: Path) -> Figures:
    """What was measured: values and reasons, by row, measure and nodes."""
    cells = json.loads((out / "results.json").read_text())["cells"]
    return {(row, measure, nodes): (values, reasons) for row, measure, nodes, values, reasons in cells}


def check_bare(found: Figures, backend: str) -> None:
    """Bare clients gather and do nothing else, and neither row stands in the other's way."""
    assert not [reasons for _, reasons in found.values() if reasons], found
    measured = {measure for row, measure, _ in found if row == f"bare/{backend}"}
    assert {"gather", "again-gather", "cpu", "calls"} <= measured
    assert not measured & {"loss", "death-3", "late", "store-set", "idle-calls", "import"}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of the comparison, by its name."""
    monkeypatch.syspath_prepend(ROOT / "dev")
    return lambda name: import_module(f"bench.{name}")


def test_everything_is_measured(tmp_path: Path) -> None:
    said = bench(tmp_path, "--quick", "--rows", "bare/sqlite", "rdzv/sqlite", "--sizes", "9", "2")
    found = figures(tmp_path)
    check_bare(found, "sqlite")
    value = {
        (measure, nodes): values[0] for (row, measure, nodes), (values, _) in found.items() if row == "rdzv/sqlite"
    }
    for size in (2, 9):
        assert 0 < value["gather", size] < 20
        for again in ("", "again-"):
            assert 1 <= value[f"{again}calls", size] <= 20
            assert 0.1 < value[f"{again}cpu", size] < 200
        assert 0 <= value["load-gather", size] < 1000
    # No node can be missed before the time to live is over.
    assert 2.5 < value["loss", 4] < 15
    assert 2.5 < value["death-3", 4] < 15
    assert 2.5 < value["spare", 4] < 15
    assert 0 < value["late", 4] < 5
    assert all(value[f"store-{name}", 2] > 10 for name in ("set", "get", "add"))
    assert 0.5 < value["idle-calls", 4] < 10
    assert 5 < value["memory", 1] < 500
    assert "Goals: " in said
    assert [path.read_bytes()[:4] for path in sorted(tmp_path.glob("*.png"))] == [b"\x89PNG"] * 3


@pytest.mark.soak
def test_peers_run_beside_us_on_the_same_service(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rows = ("pytorch/c10d", "rdzv/c10d", "rdzv/c10d-alone")
    bench(tmp_path, "--quick", "--rows", *rows, "--sizes", "2", "--only", "gather", "loss")
    found = figures(tmp_path)
    for row in rows:
        for measure in ("gather", "again-gather", "calls", "connect-kb", "again-kb", "cpu"):
            assert found[row, measure, 2][0][0] > 0, (row, measure)
    assert found["pytorch/c10d", "loss", 4] == ([], ["unnoticed for 6 s"])
    assert found["rdzv/c10d", "loss", 4][0]
    assert ("rdzv/c10d-alone", "loss", 4) not in found


@pytest.mark.soak
def test_everything_is_measured_on_a_service(tmp_path: Path) -> None:
    require_service(ZooKeeperServer)
    bench(tmp_path, "--quick", "--rows", "bare/zookeeper", "rdzv/zookeeper", "--sizes", "2")
    check_bare(figures(tmp_path), "zookeeper")


@pytest.mark.soak
def test_nodes_that_share_nothing_have_connections_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rows = ("rdzv/c10d", "rdzv/c10d-alone", "calls/c10d")
    # In eight processes, so that there is something to share.
    bench(tmp_path, "--quick", "--rows", *rows, "--sizes", "24", "--only", "gather")
    found = figures(tmp_path)
    shared, alone = (found[row, "connect-kb", 24][0][0] for row in rows[:2])
    assert alone > 1.5 * shared
    ours, floor = (found[row, "calls", 24][0][0] for row in ("rdzv/c10d", "calls/c10d"))
    assert 0.65 * ours < floor <= ours, "calls/c10d does not make rdzv's calls any more"


def test_row_that_cannot_run_says_why(tmp_path: Path) -> None:
    rows = ("--rows", "nvidia/c10d", "rdzv/sqlite")
    said = bench(tmp_path, "--quick", *rows, "--sizes", "2", "3", "--only", "gather", "--repeat", "2")
    found = figures(tmp_path)
    values, (reason,) = found["nvidia/c10d", "gather", 2]
    assert not values
    assert "nvidia_resiliency_ext" in reason
    assert [len(found["rdzv/sqlite", "gather", nodes][0]) for nodes in (2, 3)] == [2, 2]
    lines = [line for line in said.splitlines() if line.startswith("nvidia/c10d")]
    assert reason in lines[0]
    assert lines[0].endswith("not tried, after 2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--load MISSING", "'MISSING' has no results (No such file or directory): give a results.json of this command"),
        ("--load ../README.md", "'../README.md' has no results (Expecting value: line 1 column 1 (char 0)): give a"),
        ("--sizes 2 0", "argument --sizes: '0' is refused: give a whole number of at least 1"),
        ("--patience -1", "argument --patience: '-1' is refused: give a whole number of at least 0"),
        ("--repeat x", "argument --repeat: 'x' is refused: give a whole number of at least 1"),
        ("--goals --only trips", "--goals measures gather alone, and --only trips asks for more. Leave out one of the"),
        ("--only trips --sizes 2 8", "--sizes 2 8 would do nothing: only gather has sizes to choose, and --only"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: str, says: str) -> None:
    command = [sys.executable, "-m", "bench", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT / "dev", capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def samples_of(module: Callable[[str], Any], *cells: tuple[str, str, int, float | None]) -> Any:
    """A run that measured this; None: it took too long."""
    samples = module("samples")
    made = samples.Samples({"measured": "made up"})
    for cell in cells:
        made.add(samples.Sample(*cell, "" if cell[-1] is not None else "> 120 s"))
    return made


def test_a_long_reason_fits_into_a_table(module: Callable[[str], Any]) -> None:
    made = module("samples").Samples({})
    made.add(module("samples").Sample("rdzv/c10d", "gather", 2, None, "It failed:\n" + "because " * 99))
    reason = made.reason("rdzv/c10d", "gather", 2)
    assert reason.startswith("It failed: because")
    assert len(reason) <= 80


def test_goals_say_where_they_were_missed(module: Callable[[str], Any]) -> None:
    made = samples_of(
        module,
        *(("nvidia/c10d", "gather", 2, value) for value in (0.2, 0.1, 0.3)),
        ("rdzv/c10d", "gather", 2, 0.25),
        ("bare/c10d", "gather", 2, 0.06),
        ("rdzv/etcd-v3", "gather", 1024, 1.25),
        ("rdzv/etcd-v3", "again-gather", 1024, 1.5),
        ("rdzv/sqlite", "again-gather", 1024, None),
        ("rdzv/sqlite", "calls", 8, 5.0),
        ("rdzv/c10d", "kb", 8, 54.321),
        ("rdzv/c10d-alone", "kb", 8, 4.321),
        ("rdzv/c10d-alone", "kb", 1024, 4.4),
        ("rdzv/sqlite", "cpu", 128, 1.5),
        ("bare/sqlite", "cpu", 128, 0.75),
    )
    report = module("report")
    lines = [line.split("  ") for line in report.text(made).splitlines()]

    def says(beginning: str) -> list[str]:
        return next([cell.strip() for cell in cells if cell][1:] for cells in lines if cells[0].startswith(beginning))

    assert says("c10d: 2 to 1,024") == [
        "1.25 times as long (rdzv/c10d, 2); 1 of 7 miss it",
        "missed; floor 0.300",
    ]
    assert says("etcd v3: 1,024 nodes gather") == ["1.25 s (rdzv/etcd-v3, 1,024)", "met"]
    assert says("etcd v3: their round two") == ["1.50 s (rdzv/etcd-v3, 1,024)", "missed"]
    assert says("every backend") == ["> 120 s (rdzv/sqlite, 1,024); 1 of 14 miss it", "missed"]
    assert says("calls per node, round one") == ["5.00 calls (rdzv/sqlite, 8)", "23 of 24 not measured"]
    assert says("KB per node that shares") == ["4.40 KB (rdzv/c10d-alone, 1,024)", "58 of 60 not measured"]
    assert says("client CPU")[1] == "missed; floor 0.750"
    assert says("nvidia/c10d") == ["0.200 (0.100 to 0.300)", "not measured"]
    # Neither a goal of which nothing was measured, nor one of another command.
    assert not [cells for cells in lines if cells[0].startswith(("c10d: their round two", "10,000 real nodes"))]


def test_report_says_where_it_was_not_quiet(module: Callable[[str], Any]) -> None:
    quiet = [("rdzv/sqlite", "load-gather", nodes, 0.1) for nodes in (2, 8, 32)]
    text = module("report").text
    assert "Quiet: others used at most 0.2 processors before each of 3 measurements." in text(
        samples_of(module, *quiet)
    )
    busy = text(samples_of(module, *quiet, ("rdzv/c10d", "load-idle", 8, 1.9)))
    assert "more than 0.2 processors before 1 of 4 measurements: rdzv/c10d idle 8 (1.9)." in busy


def test_page_is_made_from_the_results_beside_it(module: Callable[[str], Any]) -> None:
    report = module("report")
    page = report.PAGE.read_text()
    made = report.fill_page(page, module("samples").Samples.load(report.RESULTS))
    assert made == page, f"python3 dev.py bench --load {report.RESULTS.relative_to(ROOT)} --docs"
    summary = page.partition("<!-- generated: goals -->")[2].partition("<!-- end -->")[0]
    assert 3 <= summary.count("\n| ") <= 15 + 2
    assert summary.count("![") == 1
    assert all((report.PAGE.parent / path).exists() for path in re.findall(r"!\[.*?\]\((.*?)\)", page))


def test_results_are_the_same_after_reading(module: Callable[[str], Any], tmp_path: Path) -> None:
    report = module("report")
    module("samples").Samples.load(report.RESULTS).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == report.RESULTS.read_text()


def test_what_a_later_run_has_measured_takes_the_place(module: Callable[[str], Any], tmp_path: Path) -> None:
    first, later = tmp_path / "first.json", tmp_path / "later.json"
    samples_of(module, ("rdzv/sqlite", "death-3", 4, 9.0), ("rdzv/sqlite", "gather", 2, 0.5)).save(first)
    samples_of(module, ("rdzv/sqlite", "death-3", 4, 3.3)).save(later)
    both = module("samples").Samples.load(first, later)
    assert both.values("rdzv/sqlite", "death-3", 4) == [3.3]
    assert both.values("rdzv/sqlite", "gather", 2) == [0.5]
    assert both.about == {"measured": "made up"}
    assert "rdzv/sqlite  3.30 s   1.10" in module("report").text(both)


def test_busy_machine_is_waited_for_until_patience_ends(module: Callable[[str], Any]) -> None:
    told: list[str] = []
    quiet = module("quiet").Quiet(2.0, told.append)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert quiet.wait() > module("quiet").BOUND
            assert len(told) == 2
            assert quiet.wait() > module("quiet").BOUND
        finally:
            busy.kill()
    assert len(told) == 2
    assert "goes on in 1 s at the latest" in told[-1]


def test_ctrl_c_leaves_nothing_running_and_shows_what_there_is(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bench",
        "--quick",
        "--rows",
        "rdzv/sqlite",
        "--patience",
        "0",
        "--out",
        str(tmp_path),
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=ROOT / "dev", preexec_fn=heed_ctrl_c, **pipes) as process:
        wait_until(lambda: len(list(descendants(process.pid))) > 2)
        started = list(descendants(process.pid))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    assert "All of it is in" in said
    wait_until(lambda: not any(map(runs, started)))


def heed_ctrl_c() -> None:
    """What runs in the background ignores it, and so does whatever is started there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def runs(pid: int) -> bool:
    """Whether a process lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
