"""What a test does when the service it needs is not installed: skip here, fail in CI."""

import os
from typing import Protocol

import pytest

__all__ = ["ServiceMissingError", "require_service"]


class ServiceMissingError(RuntimeError):
    """The program of a service is not on this machine; the message says how to get it."""


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
