"""`rdzv doctor`, beside packages that are installed for one test."""

import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final

import pytest

from rdzv_cli import doctor
from rdzv_cli.command import main

Install = Callable[[str, str, Mapping[str, str]], None]

RECORDED: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("platforms.toml").read_text())

BACKEND = """
from rdzv_core.backend import BackendPlugin

BACKEND = BackendPlugin("A backend.", (), None, None)
"""


def torchrun(install: Install, *entries: str) -> None:
    """Install what torchrun needs, and names for it."""
    install("torch", "", {})
    install("rdzv-torchrun", "def handler(): return len", {doctor._GROUP: "\n".join(entries)} if entries else {})


def lines(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> list[str]:
    """What the doctor says, with single blanks."""
    assert main(["doctor", *arguments]) == code
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_sound_backend_is_found(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-plugin", BACKEND, {"rdzv": "acme"})
    torchrun(install, "acme = rdzv_torchrun:handler", "rdzv = rdzv_torchrun:handler")
    said = lines(capsys, 0)
    assert "ok acme acme-plugin 1.0" in said
    assert "torchrun --rdzv-backend (torch 1.0, rdzv-torchrun 1.0):" in said
    assert "ok acme the backend acme" in said
    assert "ok rdzv any backend: --rdzv-conf=plugin=NAME" in said


def test_a_broken_backend_is_reported_with_its_cause(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-plugin", "raise RuntimeError('no luck')", {"rdzv": "acme"})
    torchrun(install, "acme = rdzv_torchrun:handler")
    said = [line for line in lines(capsys, 7) if line.startswith("BROKEN acme")]
    assert len(said) == 2
    assert all("'acme-plugin'" in line and "RuntimeError: no luck" in line for line in said)


def test_a_backend_without_its_library_is_broken(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-plugin", "import acme_client" + BACKEND, {"rdzv": "acme"})
    (said,) = (line for line in lines(capsys, 7) if line.startswith("BROKEN acme"))
    assert "'acme-plugin' is broken: ModuleNotFoundError: No module named 'acme_client'. Reinstall" in said


def test_a_name_without_its_backend_says_what_to_install(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    torchrun(install, "rdzv-etcd-v9 = rdzv_torchrun:handler")
    (said,) = (line for line in lines(capsys, 0) if "rdzv-etcd-v9" in line)
    assert said.startswith("none rdzv-etcd-v9 The rendezvous backend 'etcd-v9' is not registered")
    assert "Did you mean 'etcd-v3'" in said


def test_a_backend_without_a_name_for_torchrun_is_reached_otherwise(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("acme-plugin", BACKEND, {"rdzv": "acme"})
    torchrun(install, "rdzv = rdzv_torchrun:handler")
    said = lines(capsys, 0)
    assert "ok rdzv --rdzv-conf=plugin=acme; its package names no 'acme' in torchrun.handlers" in said


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("c10d = acme_names:handler", "torch keeps this name for itself"),
        ("acme = acme_names:missing", "AttributeError"),
        ("acme = acme_names:fails", "ValueError: not today"),
        ("acme = no_such_module:handler", "ModuleNotFoundError"),
    ],
)
def test_a_name_that_torch_will_not_take_is_broken(
    install: Install, capsys: pytest.CaptureFixture[str], entry: str, says: str
) -> None:
    torchrun(install)
    install("acme-names", "def handler(): pass\ndef fails(): raise ValueError('not today')", {doctor._GROUP: entry})
    assert any(line.startswith(f"BROKEN {entry.split()[0]} ") and says in line for line in lines(capsys, 7))


def test_a_name_of_another_package_is_left_alone(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    torchrun(install)
    install("acme-names", "def handler(): pass", {doctor._GROUP: "acme = acme_names:handler"})
    assert "ok acme acme-names, not through rdzv" in lines(capsys, 0)


HOOKS = """
from rdzv.hooks import hookimpl

@hookimpl
def rdzv_health_check(run_id): raise RuntimeError("not now")

@hookimpl
def rdzv_event(event): raise RuntimeError("not now")
"""


def test_a_sound_hook_is_reported_with_what_it_implements(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-hooks", HOOKS, {"rdzv.hooks": "acme"})
    said = lines(capsys, 0)
    assert said[said.index("hooks:") + 1] == "ok acme acme-hooks 1.0: rdzv_event, rdzv_health_check"


def test_a_broken_hook_is_reported(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-hooks", "raise RuntimeError('no luck')", {"rdzv.hooks": "acme"})
    assert any("'acme-hooks' is broken" in line for line in lines(capsys, 7))


def test_a_broken_hook_hides_no_sound_one(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("acme-hooks", "raise RuntimeError('no luck')", {"rdzv.hooks": "acme"})
    install("beta-hooks", HOOKS, {"rdzv.hooks": "beta"})
    install("gamma-hooks", "def rdzv_event(event): pass", {"rdzv.hooks": "gamma"})
    said = [line for line in lines(capsys, 7) if "hooks" in line]
    assert "ok beta beta-hooks 1.0: rdzv_event, rdzv_health_check" in said
    assert any(line.startswith("BROKEN acme") and "no luck" in line for line in said)
    assert any(line.startswith("BROKEN gamma") and "hookimpl" in line for line in said)


def test_what_torchrun_takes_by_itself_is_reported(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    torchrun(install, "rdzv = rdzv_torchrun:handler")
    assert "note --standalone torchrun takes PyTorch's own c10d then, whatever --rdzv-backend says" in lines(capsys, 0)


@pytest.mark.usefixtures("install")
@pytest.mark.parametrize("missing", ["torch", "rdzv-torchrun"])
def test_what_torchrun_needs_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def version(package: str) -> str:
        if package == missing:
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    said = lines(capsys, 0)
    assert f"none {missing} is not installed: pip install {missing}" in said
    assert any(f"no {missing}" in line for line in said)


def test_a_service_that_is_named_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "rdzv.db"
    assert not any(line.startswith("service") for line in lines(capsys, 0))
    monkeypatch.setenv("RDZV_BACKEND", "sqlite")
    assert main(["doctor", "--endpoint", str(database)]) == 2
    assert f"There is no database '{database}'" in capsys.readouterr().err
    *_, title, said = lines(capsys, 0, "--endpoint", str(database), "--option", "create=true")
    assert title.startswith(f"service (sqlite, {database} (a file:")
    assert said.startswith("ok answers, and lets us read, after 0.")


def test_a_service_that_does_not_answer_has_the_exit_code_of_any_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdzv_etcd_v3", reason="the backend etcd-v3 is not installed")
    assert main(["doctor", "--backend", "etcd-v3", "--endpoint", "127.0.0.1:1", "--timeout", "0.2"]) == 6
    assert "http://127.0.0.1:1: not connected: Connection refused" in capsys.readouterr().err


def test_the_platform_is_shown_with_what_is_ignored(
    install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("torch", "", {})
    install("rdzv-c10d", BACKEND, {"rdzv": "c10d"})
    for name, value in RECORDED["slurm-step"]["environ"].items():
        monkeypatch.setenv(name, value)
    said = lines(capsys, 0)
    assert "platform (Slurm):" in said
    assert "ok --run-id rdzv-1 (from SLURM_CLUSTER_NAME, SLURM_JOB_ID)" in said
    assert "ok --option node_name n3 (from SLURMD_NODENAME)" in said
    assert "ok tasks on this node 1 (from SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID, Slurm)" in said
    assert "ok hosts n1, n2, n3 (from SLURM_STEP_NODELIST, Slurm)" in said
    assert "ok without service the nodes meet at n1:23713 (from SLURM_STEP_NODELIST)" in said
    (ignored,) = (line for line in said if "SLURM_LAUNCH_NODE_IPADDR" in line)
    assert ignored == "note ignored SLURM_LAUNCH_NODE_IPADDR: it is where srun was called, which may be a login node"
    monkeypatch.setenv("RDZV_PLATFORM", "none")
    assert any(line.startswith("note RDZV_PLATFORM is none") for line in lines(capsys, 0))


@pytest.mark.parametrize(
    ("variable", "value", "flag"),
    [("RDZV_RUN_ID", "job-7", "--run-id"), ("RDZV_OPTIONS", "node_name=a,attempt=3", "--option node_name")],
)
def test_what_the_platform_gives_is_not_taken_where_a_variable_of_rdzv_is_set(
    variable: str, value: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in RECORDED["slurm-step"]["environ"].items():
        monkeypatch.setenv(name, text)
    before = [line for line in lines(capsys, 0) if line.startswith(f"ok {flag} ")]
    monkeypatch.setenv(variable, value)
    said = [line for line in lines(capsys, 0) if f" {flag} " in line]
    expected = [f"note {line.removeprefix('ok ')} is not taken: {variable} comes before it" for line in before]
    assert said == expected != []


def test_the_service_of_the_platform_is_not_taken_where_another_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in {"PET_RDZV_ID": "job", "PET_RDZV_BACKEND": "etcd-v3", "PET_RDZV_ENDPOINT": "host:2379"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("RDZV_ENDPOINT", str(tmp_path / "none.db"))
    assert main(["doctor", "--timeout", "0.1"]) == 2  # there is no file
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    notes = [line for line in said if line.endswith("is not taken: RDZV_ENDPOINT comes before it")]
    assert [line.split()[1] for line in notes] == ["--backend", "--endpoint"]


def test_what_a_platform_lets_no_run_begin_for_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RECORDED["mpich"]["environ"].items():
        monkeypatch.setenv(name, value)
    (said,) = (line for line in lines(capsys, 0) if line.startswith("note rdzv run"))
    assert "has started 2 tasks on this node" in said


def test_a_row_of_a_site_that_is_broken_is_shown(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("our-site", "", {"rdzv.platforms": "ours = our_site:ROW"})
    said = lines(capsys, 7)
    (broken,) = (line for line in said if line.startswith("BROKEN"))
    assert "'ours' of the package 'our-site' is broken: AttributeError" in broken
    assert "platform (none):" in said


def test_a_login_in_an_endpoint_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd-v3")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "user:hunter2@db1:2379")
    said = "\n".join(lines(capsys, 0))
    assert "--endpoint" in said
    assert "db1:2379" in said
    assert "hunter2" not in said
