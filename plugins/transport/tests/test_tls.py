"""TLS by options: what cannot be is refused before anything is connected."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import parse_options

from rdzv_transport import pop_tls_context, request_timeout_option, tls_context, tls_options

OPTIONS = (*tls_options("servers'"), request_timeout_option("endpoints"))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"protocol": "http", "ca_cert": ("ca", "x")}, "'ca' needs TLS"),
        ({"key": ("my_key", __file__)}, "'my_key' needs 'cert'"),
        ({"ca_cert": ("ca", __file__)}, f"The ca '{__file__}' cannot be used"),
        ({"cert": ("my_cert", __file__), "key": ("key", __file__)}, "The my_cert .* with the key .* cannot be used"),
    ],
)
def test_tls_that_cannot_be(given: dict[str, object], complaint: str) -> None:
    unset = {name: (name, None) for name in ("ca_cert", "cert", "key")}
    with pytest.raises(RendezvousParameterError, match=complaint):
        tls_context(**{"protocol": None, **unset, **given})  # type: ignore[arg-type]


def test_no_tls_unless_something_asks_for_it() -> None:
    unset = {name: (name, None) for name in ("ca_cert", "cert", "key")}
    assert tls_context(protocol=None, **unset) is None
    assert tls_context(protocol="http", **unset) is None
    assert tls_context(protocol="https", **unset) is not None
    assert tls_context(protocol=None, **unset, server_name=("server_name", "x")) is not None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"protocol": "ftp"}, "'protocol' cannot be 'ftp': one of http, https"),
        ({"request_timeout": "0"}, "'request_timeout' cannot be '0': a number of seconds above zero"),
        ({"ca_cert": "/no/such/file"}, "'ca_cert' cannot be"),
        ({"protocol": "http", "server_name": "one"}, "'server_name' needs TLS"),
    ],
)
def test_options_that_cannot_be(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint):
        pop_tls_context(parse_options(given, OPTIONS))


def test_what_is_left_of_the_options_is_the_backends_own() -> None:
    options = parse_options({"server_name": "one"}, OPTIONS)
    assert pop_tls_context(options) is not None
    assert options == {"server_name": "one", "request_timeout": 3.0}


def test_options_have_the_names_that_a_backend_gives_them() -> None:
    options = tls_options("agents'", ca_cert="cacert", cert="crt", server_name=None)
    assert [option.name for option in options] == ["protocol", "cacert", "crt", "key"]
    assert "https if any of cacert, crt and key is given" in options[0].help
    assert "the agents' certificates" in options[1].help


def test_an_encrypted_key_is_refused_and_asks_for_no_passphrase(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("client.test")
    key: Any = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert_file))
    secret = serialization.BestAvailableEncryption(b"secret")
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(RendezvousParameterError, match="encrypted"):
        pop_tls_context(parse_options({"cert": str(cert_file), "key": str(key_file)}, OPTIONS))


def test_a_certificate_and_its_key_change_as_a_pair_that_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key, ca_cert = (tmp_path / f"{name}.pem" for name in ("cert", "key", "ca"))
    authority = trustme.CA()
    old, new = (authority.issue_cert("client.test") for _ in range(2))
    old.cert_chain_pems[0].write_to_path(str(cert))
    old.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca_cert))
    context = pop_tls_context(parse_options({"cert": cert, "key": key, "ca_cert": ca_cert}, OPTIONS))
    assert context is not None
    first = context()
    assert context() is first
    new.cert_chain_pems[0].write_to_path(str(cert))
    assert [context(), context()] == [first, first]
    (warning,) = (record.message for record in caplog.records)
    assert f"The cert '{cert}' with the key '{key}' cannot be used" in warning
    new.private_key_pem.write_to_path(str(key))
    second = context()
    assert second is not first
    ca_cert.write_text("no certificate")
    assert context() is second
    authority.cert_pem.write_to_path(str(ca_cert))
    third = context()
    assert isinstance(third, ssl.SSLContext)
    assert third is not second
    assert len(caplog.records) == 2
