"""What torchrun finds, whatever is missing or broken."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rdzv_cli.command import main
from rdzv_core import plugins
from rdzv_core.plugins import installed_backends
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

import rdzv_torchrun

KEPT_BY_TORCH = {"c10d", "etcd", "etcd-v2", "static"}
BACKENDS = {"c10d", "consul", "etcd", "etcd-v2", "etcd-v3", "sqlite", "zookeeper"}


def parameters(backend: str, endpoint: str = "127.0.0.1:1", **options: str) -> RendezvousParameters:
    """What torchrun makes of its command line."""
    return RendezvousParameters(backend, endpoint, "job", 1, 1, timeout=900, **options)


def install(folder: Path, name: str, source: str, entries: str) -> None:
    """A distribution with one module."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


def python(folder: Path, code: str) -> str:
    """What a program says, with nothing but that: no warning, no traceback."""
    # torch reports names that it could not look up.
    environment = os.environ | {"PYTHONPATH": str(folder), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_every_backend_has_every_name_that_is_free() -> None:
    ours = {entry.name for entry in entry_points(group="torchrun.handlers") if entry.module == "rdzv_torchrun"}
    assert {"rdzv", *(f"rdzv-{name}" for name in BACKENDS), *(BACKENDS - KEPT_BY_TORCH)} <= ours
    assert not ours & KEPT_BY_TORCH
    assert all(rendezvous_handler_registry._registry[name] is rdzv_torchrun.create_handler for name in ours)


@pytest.mark.parametrize("name", ["sqlite", "rdzv-sqlite", "rdzv"])
def test_a_backend_is_found_by_each_of_its_names(name: str, database: str) -> None:
    options = {"plugin": "sqlite"} if name == "rdzv" else {}
    handler = get_rendezvous_handler(parameters(name, database, **options))
    assert handler.get_backend() == name
    assert handler.shutdown()


def test_a_backend_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    monkeypatch.setattr(plugins, "registered_backends", {})
    with pytest.raises(ValueError, match="pip install rdzv-etcd-v2"):
        get_rendezvous_handler(parameters("rdzv-etcd-v2"))
    assert installed_backends() == {}


def test_importing_torch_imports_no_backend_and_not_even_rdzv(tmp_path: Path) -> None:
    broken = "[rdzv]\nacme = acme\n[torchrun.handlers]\nacme = rdzv_torchrun:handler\n"
    install(tmp_path, "acme", "raise RuntimeError('no luck')", broken)
    code = """
import sys, torch.distributed.run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
print("acme" in rendezvous_handler_registry._registry, sorted({"acme", "rdzv", "rdzv_torchrun"} & set(sys.modules)))
"""
    assert python(tmp_path, code) == "True ['rdzv_torchrun']"


def test_a_broken_backend_is_reported_when_it_is_chosen(tmp_path: Path) -> None:
    broken = "[rdzv]\nacme = acme\n[torchrun.handlers]\nacme = rdzv_torchrun:handler\n"
    install(tmp_path, "acme", "raise RuntimeError('no luck')", broken)
    code = """
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
try:
    get_rendezvous_handler(RendezvousParameters("acme", "", "job", 1, 1))
except RendezvousError as error:
    print(error)
"""
    assert python(tmp_path, code).startswith("The plugin 'acme' of the package 'acme' is broken: RuntimeError: no luck")


@pytest.mark.parametrize(
    ("line", "backend", "options"),
    [("[torchrun.handlers]\nacme = rdzv_torchrun:handler\n", "acme", {}), ("", "rdzv", {"plugin": "acme"})],
    ids=["by its name", "by way of rdzv"],
)
def test_a_backend_of_a_third_party(tmp_path: Path, line: str, backend: str, options: dict[str, str]) -> None:
    # A backend that is another one by another name is a whole one.
    plugin = """
from rdzv_sqlite.plugin import BACKEND
"""
    install(tmp_path, "acme", plugin, "[rdzv]\nacme = acme:BACKEND\n" + line)
    code = f"""
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
params = RendezvousParameters({backend!r}, {str(tmp_path / "rdzv.db")!r}, "job", 1, 1, **{options!r})
handler = get_rendezvous_handler(params)
print(handler.get_backend(), handler.next_rendezvous().world_size, handler.shutdown())
"""
    assert python(tmp_path, code) == f"{backend} 1 True"


def test_the_doctor_says_what_torch_has_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out.partition("torchrun --rdzv-backend")[2].splitlines()[1:]
    states = {name: state for state, name in (line.split()[:2] for line in said) if state != "note"}
    assert states.keys() == rendezvous_handler_registry._registry.keys() - KEPT_BY_TORCH
    installed = installed_backends().keys()
    found = {name for name, state in states.items() if state == "ok"}
    assert found == {"rdzv", *(installed - KEPT_BY_TORCH), *(f"rdzv-{name}" for name in installed & BACKENDS)}
