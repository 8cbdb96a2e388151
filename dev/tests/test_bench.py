"""The comparison runs, in miniature: real nodes, real services, real tables."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .agents import wait_until

ROOT = Path(__file__).parents[2]


def bench(out: Path, *arguments: str) -> str:
    """Run the comparison; the text of its report."""
    command = [sys.executable, "-m", "bench", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT / "dev", capture_output=True, text=True, check=True, timeout=200).stdout


def figures(out: Path) -> dict[tuple[str, str, int], tuple[float | None, str]]:
    """What was measured: value and reason, by row, measure and nodes."""
    samples = json.loads((out / "samples.json").read_text())["samples"]
    return {(s["row"], s["measure"], s["nodes"]): (s["value"], s["reason"]) for s in samples}


def test_everything_is_measured(tmp_path: Path) -> None:
    said = bench(tmp_path, "--quick", "--rows", "rdzv/sqlite", "--sizes", "2", "9", "--repeat", "1")
    found = figures(tmp_path)
    value = {(measure, nodes): value for (_, measure, nodes), (value, _) in found.items()}
    assert None not in value.values(), found
    for size in (2, 9):
        assert 0 < (value["gather", size] or 0) < 20
        assert 1 <= (value["calls", size] or 0) <= 20
        assert 1 <= (value["again-calls", size] or 0) <= 20
    # No node can be missed before the time to live is over.
    assert 2.5 < (value["loss", 4] or 0) < 15
    assert 0 < (value["late", 4] or 0) < 5
    assert all((value[f"store-{name}", 2] or 0) > 10 for name in ("set", "get", "add"))
    assert 0.5 < (value["idle-calls", 4] or 0) < 10
    assert 5 < (value["memory", 1] or 0) < 500
    assert "Targets: " in said
    assert [path.read_bytes()[:4] for path in sorted(tmp_path.glob("*.png"))] == [b"\x89PNG"] * 3


@pytest.mark.soak
def test_peers_run_beside_us_on_the_same_service(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rows = ("pytorch/c10d", "rdzv/c10d")
    said = bench(tmp_path, "--quick", "--rows", *rows, "--sizes", "2", "--repeat", "1", "--only", "gather", "loss")
    found = figures(tmp_path)
    for row in rows:
        for measure in ("gather", "again-gather", "calls", "connect-bytes", "again-bytes"):
            assert (found[row, measure, 2][0] or 0) > 0, (row, measure)
    assert found["pytorch/c10d", "loss", 4] == (None, "unnoticed for 6 s")
    assert found["rdzv/c10d", "loss", 4][0]
    assert "2 nodes gather 10 times faster than PyTorch's on c10d" in said


def test_row_that_cannot_run_says_why(tmp_path: Path) -> None:
    arguments = ("--rows", "nvidia/c10d", "rdzv/sqlite", "--sizes", "2", "--repeat", "1", "--only", "gather")
    bench(tmp_path, "--quick", *arguments)
    found = figures(tmp_path)
    value, reason = found["nvidia/c10d", "gather", 2]
    assert value is None
    assert "nvidia_resiliency_ext" in reason
    assert found["rdzv/sqlite", "gather", 2][0]


def test_report_tells_by_how_much_a_target_was_missed(tmp_path: Path) -> None:
    def sample(row: str, measure: str, nodes: int, value: float | None, reason: str = "") -> dict[str, Any]:
        return {"row": row, "measure": measure, "nodes": nodes, "value": value, "reason": reason}

    samples = [
        sample("pytorch/c10d", "gather", 2, 1.0),
        sample("pytorch/c10d", "gather", 8, None, "> 120 s"),
        *(sample("nvidia/c10d", "gather", 2, value) for value in (0.2, 0.1, 0.3)),
        sample("rdzv/c10d", "gather", 2, 0.25),
        sample("rdzv/c10d", "gather", 8, 0.5),
        sample("rdzv/c10d", "again-gather", 2, 0.75),
        sample("rdzv/c10d", "calls", 2, 9.0),
        sample("rdzv/c10d", "bytes", 2, 4321.0),
        sample("rdzv/sqlite", "calls", 2, 5.0),
    ]
    (tmp_path / "samples.json").write_text(json.dumps({"about": {"machine": "made up"}, "samples": samples}))
    lines = bench(tmp_path, "--load", str(tmp_path / "samples.json")).splitlines()

    def ends(beginning: str) -> str:
        return next(line for line in lines if line.startswith(beginning)).rpartition("  ")[2]

    assert ends("2 nodes gather 10 times faster than PyTorch's on c10d") == "missed: 4.0 of 10"
    assert ends("8 nodes gather 10 times faster than PyTorch's on c10d") == "met"
    assert ends("2 nodes gather faster than NVIDIA's") == "missed: 0.8 of 1"
    assert ends("rdzv/c10d: round two of 2 nodes") == "missed: 3.0 times as long"
    assert ends("rdzv/c10d: at most 6 calls per node in round one of 2") == "missed: 3.0 too many"
    assert any("0.200 (0.100 to 0.300)" in line for line in lines)
    assert any(line.split() == ["rdzv/c10d", "4.32"] for line in lines)
    assert any(line.split() == ["rdzv/sqlite", "no", "network"] for line in lines)
    assert "machine: made up" in lines


def test_ctrl_c_leaves_nothing_running_and_shows_what_there_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--rows", "rdzv/sqlite", "--out", str(tmp_path)]
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
