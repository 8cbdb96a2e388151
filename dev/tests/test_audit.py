"""The audit names what is vulnerable, and takes no silence for an all-clear."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

SAFE = {"name": "safe", "version": "1.0", "vulns": []}
OURS = {"name": "rdzv", "skip_reason": "distribution marked as editable"}
UNKNOWN = {"name": "rare", "skip_reason": "Dependency not found: rare (1.0)"}
WEAK = {"name": "weak", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
OPEN = {"name": "open", "version": "3.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}

PIP_AUDIT = """
import sys
report = sys.argv[sys.argv.index("--output") + 1]
open(report, "w").write({report!r})
sys.exit(1)
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev/tools/audit.py."""
    monkeypatch.syspath_prepend(ROOT / "dev" / "tools")
    return import_module("audit")


@pytest.mark.parametrize(
    ("dependencies", "expected"),
    [
        ([SAFE, OURS], []),
        ([UNKNOWN], ["rare: not audited: Dependency not found: rare (1.0)"]),
        ([WEAK, OPEN], ["weak 2.0: PYSEC-1, fixed in 2.1", "open 3.0: PYSEC-2, no version has a fix"]),
    ],
)
def test_what_is_vulnerable_or_unknown_is_named(tool: Any, dependencies: list[object], expected: list[str]) -> None:
    assert [*tool.findings({"dependencies": dependencies})] == expected


def test_a_report_is_read(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # A module of pip-audit's name answers in its place.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = tmp_path / "pip_audit.py"
    answer.write_text(PIP_AUDIT.format(report=json.dumps({"dependencies": [SAFE, OURS]})))
    tool.main([])
    assert capfd.readouterr().out == "No vulnerability is known. Packages asked about: 1.\n"
    answer.write_text(PIP_AUDIT.format(report=json.dumps({"dependencies": [SAFE, WEAK]})))
    with pytest.raises(SystemExit, match=r"^weak 2\.0: PYSEC-1, fixed in 2\.1$"):
        tool.main([])


def test_a_service_that_cannot_be_reached_is_no_all_clear(tool: Any, tmp_path: Path) -> None:
    requirement = tmp_path / "requirements.txt"
    requirement.write_text(f"pluggy==1.5.0 --hash=sha256:{'0' * 64}\n")
    # Nothing listens on port 9 of this host.
    asked = ["--osv-url", "https://127.0.0.1:9/v1/query", "--disable-pip", "--requirement", str(requirement)]
    with pytest.raises(SystemExit) as end:
        tool.main(asked)
    assert str(end.value).startswith("Nothing was audited: the vulnerability service, OSV, gave no answer.")
    assert "Connection refused" in str(end.value)
