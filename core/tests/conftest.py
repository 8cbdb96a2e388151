"""Packages with entry points, installed for one test."""

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rdzv_core import plugins

OBJECTS = {"rdzv": ":BACKEND"}
"""What entries of a group lead to, if not to the module."""

Install = Callable[[str, str, Mapping[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """See `installing`."""
    yield from installing(tmp_path, monkeypatch)


def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: its name, the source of its only module, and `{group: entry}`.

    An entry is a name for the module (of a backend: for `BACKEND` in it), or whole lines. The module is called as
    the distribution, with underscores. Plugins loaded by the test are forgotten after it.
    """
    monkeypatch.setattr(plugins, "registered_backends", {})
    monkeypatch.syspath_prepend(tmp_path)
    modules: list[str] = []

    def install_package(name: str, source: str, entries: Mapping[str, str]) -> None:
        module = name.replace("-", "_")
        modules.append(module)
        # One that is there under this name comes back after the test.
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = []
        for group, entry in entries.items():
            lines += [f"[{group}]", entry if "=" in entry else f"{entry} = {module}{OBJECTS.get(group, '')}"]
        (info / "entry_points.txt").write_text("\n".join(lines))
        importlib.invalidate_caches()

    yield install_package
    for module in modules:
        sys.modules.pop(module, None)
