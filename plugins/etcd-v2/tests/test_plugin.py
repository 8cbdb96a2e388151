"""How the backend is found, and its options."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from rdzv.backend import Capability
from rdzv.errors import RendezvousParameterError
from rdzv.parameters import RendezvousParameters
from rdzv.plugins import load_backend_plugin
from rdzv.registry import get_rendezvous_handler

from rdzv_etcd_v2 import EtcdV2Backend, create_backend


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("etcd-v2", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, EtcdV2Backend)
    backend.close()


def test_the_plugin_is_found() -> None:
    plugin = load_backend_plugin("etcd-v2")
    assert plugin.create_backend is create_backend
    assert plugin.backend_type() is EtcdV2Backend
    assert EtcdV2Backend.capabilities == set(Capability) - {Capability.LEASE}
    assert plugin.default_endpoint is None
    with pytest.raises(RendezvousParameterError, match="'etcd-v2' needs an endpoint, such as host1:2379,host2:2379,"):
        get_rendezvous_handler(RendezvousParameters("etcd-v2", "", "run", 1, 1))


@pytest.mark.parametrize("module", ["plugin", "legacy"])
def test_describing_it_imports_no_more_than_it_must(module: str) -> None:
    program = (
        f"import sys; from rdzv_etcd_v2.{module} import rdzv_backend; rdzv_backend();"
        "assert not {'http.client', 'ssl', 'rdzv_etcd_v2.backend'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["etcd-v2", "etcd"])
def test_every_option_is_in_the_readme(name: str) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    for option in load_backend_plugin(name).options:
        default = "" if option.default is None else f"`{option.default}`"
        row = f"| `{option.name}` | {option.kind} | {default} | {option.help}".replace("  ", " ")
        assert row.replace("<", "&lt;").replace(">", "&gt;") in readme, option.name


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="team/jobs", read_timeout="0.5")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endpoint": ""}, "endpoint is empty"),
        ({"endpoint": "http://localhost:2379"}, "scheme"),
        ({"endpoint": "localhost:0"}, "port '0' is not a number from 1 to 65535"),
        ({"prefix": "/"}, "The prefix '/' is empty.*team/jobs"),
        ({"etcd_prefix": ""}, "The etcd_prefix '' is empty.*team/jobs"),
        ({"etcd_prefix": "a//b"}, "'a//b' has an empty part.*team/jobs"),
        ({"prefix": "a/../b"}, r"'a/\.\./b' has the part '\.\.'.*team/jobs"),
        ({"protocol": "ftp"}, "protocol"),
        ({"read_timeout": "0"}, "read_timeout"),
        ({"read_timeout": "abc"}, "'read_timeout' cannot be 'abc': a number of seconds above zero.*such as 2.5"),
        ({"ca_cert": "/no/such/file"}, "ca_cert"),
        ({"ca_cert": __file__}, "ca_cert.*cannot be used"),
        ({"ssl_cert": __file__}, "ssl_cert.*cannot be used"),
        ({"ssl_cert_key": __file__}, "'ssl_cert_key' needs 'ssl_cert'"),
        ({"protocol": "http", "server_name": "etcd"}, "'server_name' needs TLS"),
        ({"password": "secret"}, "'user' and 'password'"),
        ({"user": "a:b", "password": "secret"}, "colon"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint) as refused:
        _create(**options)
    assert "secret" not in str(refused.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("client.test")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert_file))
    secret = serialization.BestAvailableEncryption(b"secret")
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(RendezvousParameterError, match="encrypted"):
        _create(ssl_cert=cert_file, ssl_cert_key=key_file)
