"""The chaos task finds a bug that is put back into rdzv."""

import sys
from pathlib import Path

import pytest
from rdzv_conformance.chaos.faults import FAULTS

from conformance.tests.chaos.test_chaos import Chaos, seed_of

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.soak


class ChaosWithBug(Chaos):
    """The task as `python3 dev.py chaos` runs it."""

    command = (sys.executable, str(ROOT / "dev" / "tools" / "chaos.py"))


ON_A_FILE = [name for name in FAULTS if name not in {"close", "shutdown", "partition", "member", "outage"}]
REFUSED = seed_of(ON_A_FILE, 10.0, lambda faults: faults.count("refuse") > 2)


@pytest.mark.parametrize(
    ("bug", "number", "seed"),
    [
        ("no-exclusivity", 2, "3"),
        ("own-address", 1, "3"),
        ("refusal-is-final", 7, REFUSED),
        ("leader-without-grace-period", 10, "503"),
    ],
)
def test_a_bug_that_is_put_back_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, number: int, seed: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "engine" / "tests"))
    chaos = ChaosWithBug(tmp_path, "--bug", bug, "--backend", "sqlite", "--minutes", "1", "--seed", seed)
    code, said = chaos.ends()
    assert code == 1, said
    assert f"invariant {number}: " in said
    assert " returns: round " in said, "the trace is missing"
    chaos.leaves_nothing()
