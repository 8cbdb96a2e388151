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

from rdzv_consul import ConsulBackend, create_backend


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("consul", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, ConsulBackend)
    backend.close()


def test_the_plugin_is_found() -> None:
    plugin = load_backend_plugin("consul")
    assert plugin.create_backend is create_backend
    assert plugin.backend_type() is ConsulBackend
    assert ConsulBackend.capabilities == set(Capability) - {Capability.LEASE}
    assert ConsulBackend.name == plugin.name
    assert plugin.default_endpoint == "127.0.0.1"


def test_describing_it_imports_no_more_than_it_must() -> None:
    program = (
        "import sys; from rdzv_consul.plugin import rdzv_backend; rdzv_backend();"
        "assert not {'http.client', 'ssl', 'rdzv_consul.backend'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_option_is_in_the_readme() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    for option in load_backend_plugin("consul").options:
        default = "" if option.default is None else f"`{option.default}`"
        assert f"| `{option.name}` | {option.kind} | {default}" in readme, option.name


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="team/jobs", request_timeout="0.5")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endpoint": ""}, "endpoint is empty"),
        ({"endpoint": "http://localhost:8500"}, "scheme"),
        ({"endpoint": "localhost:0"}, "port '0' is not a number from 1 to 65535"),
        ({"prefix": "/"}, "The prefix '/' is empty.*team/jobs"),
        ({"prefix": "a//b"}, "'a//b' has an empty part.*team/jobs"),
        ({"prefix": "a/../b"}, r"'a/\.\./b' has the part '\.\.'.*team/jobs"),
        ({"protocol": "ftp"}, "protocol"),
        ({"request_timeout": "0"}, "request_timeout"),
        ({"ca_cert": "/no/such/file"}, "ca_cert"),
        ({"ca_cert": __file__}, "ca_cert.*cannot be used"),
        ({"cert": __file__}, "cert.*cannot be used"),
        ({"key": __file__}, "'key' needs 'cert'"),
        ({"protocol": "http", "server_name": "consul"}, "'server_name' needs TLS"),
        ({"token": "sec\nret"}, r"token.*is empty, or has blanks"),
        ({"token": ""}, r"token.*is empty"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint) as refused:
        _create(**options)
    assert "ret" not in str(refused.value) or "token" not in options


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("client.test")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert_file))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(RendezvousParameterError, match="encrypted"):
        _create(cert=cert_file, key=key_file)
