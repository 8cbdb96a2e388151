"""Secrets are kept from the programs that an agent starts."""

import pytest
from rdzv_core.credentials import with_secrets

from rdzv import RendezvousParameterError, RendezvousParameters, config
from rdzv.programs import withhold


def test_a_program_gets_no_secret() -> None:
    params = RendezvousParameters("b", "", "run", 1, 1, user="me", password="hunter2")
    public, environment = withhold(params, ["password", "token"], {"RDZV_TOKEN": "hunter3", "HOME": "/"})
    assert public.config == {"user": "me"}
    assert params.config == {"user": "me", "password": "hunter2"}
    assert environment == {"HOME": "/", "RDZV_WITHHELD": "password,token"}


def test_a_program_gets_no_secret_of_another_backend() -> None:
    given = {"RDZV_TOKEN": "hunter3", "RDZV_TOKEN_FILE": "kept", "RDZV_RUN_ID": "run", "RDZV_KEY_PASSPHRASE": "hunter4"}
    _, environment = withhold(RendezvousParameters("sqlite", "", "run", 1, 1), [], given)
    assert environment == {"RDZV_TOKEN_FILE": "kept", "RDZV_RUN_ID": "run"}


def test_a_program_gets_the_name_of_the_file() -> None:
    params = RendezvousParameters("b", "", "run", 1, 1, password_file="kept")
    public, environment = withhold(params, ["password"], {"RDZV_PASSWORD": "x", "RDZV_WITHHELD": "password"})
    assert public.config == {"password_file": "kept"}
    assert environment == {}
    assert "kept" in repr(params)


def test_a_secret_that_was_withheld_is_missed_with_a_way_out() -> None:
    params = RendezvousParameters("b", "db1:2379", "run", 1, 1, password="hunter2")
    public, environment = withhold(params, ["password"], {})
    environment |= config.to_env(public)
    with pytest.raises(RendezvousParameterError, match=r"'password' is missing here.*password_file.*--pass-secrets"):
        with_secrets(public, ["password"], environment)
    public.config["password"] = "of its own"
    assert with_secrets(public, ["password"], environment).config == {"password": "of its own"}


@pytest.mark.parametrize(("backend", "endpoint"), [("b", "db2:2379"), ("c", "db1:2379"), ("b", "")])
def test_another_service_that_needs_no_secret_is_usable_under_an_agent(backend: str, endpoint: str) -> None:
    environment = {"RDZV_BACKEND": "b", "RDZV_ENDPOINT": "db1:2379", "RDZV_WITHHELD": "password"}
    params = RendezvousParameters(backend, endpoint, "run", 1, 1)
    assert with_secrets(params, ["password"], environment).config == {"password": None}
