"""What a test does when the service it needs is not installed: skip here, fail in CI."""

import os
from pathlib import Path
from typing import Protocol

import pytest


class ServiceMissingError(RuntimeError):
    """The program of a service is not on this machine; the message says how to get it."""


def named_program(variable: str) -> Path | None:
    """The program that an environment variable names; None: it is not set.

    Raises:
        ServiceMissingError: What it names is not a program.
    """
    named = os.environ.get(variable)
    if named and not os.access(named, os.X_OK):
        raise ServiceMissingError(f"{variable} names {named!r}, which is not a program.")
    return Path(named) if named else None


class _Findable(Protocol):
    def find_binary(self) -> object: ...


def require_service(server: _Findable) -> None:
    """Skip the calling test or fixture if a service is not installed; where ``CI`` is set, fail.

    Args:
        server: The class that runs it, such as `EtcdServer`.
    """
    try:
        server.find_binary()
    except ServiceMissingError as error:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"In CI every service must be there. {error}")
        pytest.skip(str(error))
