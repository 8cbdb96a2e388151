"""How the backend is found, and its options."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from rdzv_conformance.users import refusing
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters

from rdzv_zookeeper import ZooKeeperBackend, create_backend


def _create(endpoint: str = "localhost", run_id: str = "run", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("zookeeper", endpoint, run_id, 1, 1, **options))
    assert isinstance(backend, ZooKeeperBackend)
    backend.close()


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="/jobs/rdzv/", request_timeout="0.5", tls="false")


test_what_cannot_be_used_is_refused = refusing(
    create_backend,
    {
        "endpoint": {"": "endpoint is empty.*host:port, such as", "zk://localhost:2181": "scheme"},
        "prefix": {
            "/": "prefix '/'.*empty.*such as rdzv",
            "a//b": "prefix 'a//b'.*a part is empty.*such as rdzv",
            "a/../b": r"prefix 'a/\.\./b'.*its part '\.\.'",
            "a/b\nc": r"prefix.*its part 'b\\nc'",
            "zookeeper/rdzv": "keeps /zookeeper for itself",
        },
        "tls": {"perhaps": "tls"},
        "request_timeout": {"0": "request_timeout"},
        "ca_cert": {"/no/such/file": "ca_cert", __file__: "ca_cert.*cannot be used"},
        "cert": {__file__: "cert.*cannot be used"},
        "key": {__file__: "'key' needs 'cert'"},
        "sasl": {"DIGEST-MD5": "DIGEST-MD5 needs.*'user' and 'password'"},
    },
)
test_an_unknown_mechanism_is_refused = refusing(
    create_backend, {"sasl": {"SMOKE": "sasl.*SMOKE.*DIGEST-MD5, GSSAPI"}}, user="me", password="x7"
)
test_no_tls_and_a_name_for_it_is_refused = refusing(
    create_backend, {"server_name": {"zk": "'server_name' needs TLS"}}, tls="false"
)


def test_sasl_without_its_package_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['puresasl'] = None\n"
        "from rdzv_zookeeper import ZooKeeperBackend\n"
        "from rdzv_core.endpoints import Endpoint\n"
        "ZooKeeperBackend([Endpoint('localhost', 2181)], 'run', sasl='DIGEST-MD5', user='me', password='x')\n"
    )
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "RendezvousParameterError: The option 'sasl' needs a package" in failed.stderr
    assert "pip install 'rdzv-zookeeper[sasl]'" in failed.stderr


def test_an_encrypted_key_is_refused_and_asks_for_no_passphrase(tmp_path: Path) -> None:
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
