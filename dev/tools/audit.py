#!/usr/bin/env python3
"""Asks OSV, the database of known vulnerabilities, about all that .venv holds: ``python3 dev.py audit``.

pip-audit asks, and what follows goes to it. An answer that could not be had is a failure, since it is no all-clear.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "editable"
"""Said by pip-audit of what is left out since it is a part of this workspace."""


def main(arguments: Sequence[str]) -> None:
    """Ask, and end with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="rdzv-audit-") as folder:
        path = Path(folder, "report.json")
        options = ["--vulnerability-service", "osv", "--skip-editable", "--progress-spinner", "off"]
        command = [sys.executable, "-m", "pip_audit", *options, "--format", "json", "--output", str(path), *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if not path.exists():
            sys.exit(unanswered(done.stderr))
        report = json.loads(path.read_text())
    if wrong := [*findings(report)]:
        sys.exit("\n".join(wrong))
    asked = sum("skip_reason" not in dependency for dependency in report["dependencies"])
    print(f"No vulnerability is known. Packages asked about: {asked}.")


def unanswered(said: str) -> str:
    """Why there is no report, from what pip-audit has said."""
    last = said.strip().rpartition("\n")[2] or "it said nothing"
    return (
        "Nothing was audited: the vulnerability service, OSV, gave no answer. Run this where https://api.osv.dev can "
        f"be reached, or name a mirror: `python3 dev.py audit --osv-url URL`.\npip-audit: {last}"
    )


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Each known vulnerability, and each package that was not looked up."""
    for dependency in report["dependencies"]:
        if reason := dependency.get("skip_reason"):
            if OURS not in reason:
                yield f"{dependency['name']}: not audited: {reason}"
            continue
        for found in dependency["vulns"]:
            fixed = f"fixed in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "no version has a fix"
            yield f"{dependency['name']} {dependency['version']}: {found['id']}, {fixed}"


if __name__ == "__main__":
    main(sys.argv[1:])
