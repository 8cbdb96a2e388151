"""Backends as users make them: by a plugin's name and options."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest
from rdzv_core.backend import KeyValueBackend
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters


class Create(Protocol):
    """Makes a backend for the run of that id, by options."""

    def __call__(self, endpoint: str, run_id: str = ..., **options: Any) -> KeyValueBackend: ...


def refusing(
    create: Callable[[RendezvousParameters], object], unusable: Mapping[str, Mapping[str, str]], **besides: str
) -> Callable[..., None]:
    """A test that parameters which cannot be used are refused at once, by an error without secrets.

    Args:
        create: A plugin's ``create_backend``.
        unusable: For each option, or ``endpoint``, the values that cannot be used, and what the error says of each, as
            a regular expression.
        besides: Options that are given, too.
    """
    cases = [(option, value, words) for option, values in unusable.items() for value, words in values.items()]

    @pytest.mark.parametrize(("option", "value", "words"), cases)
    def test(option: str, value: str, words: str) -> None:
        options = {"endpoint": "localhost", **besides, option: value}
        with pytest.raises(RendezvousParameterError, match=words) as refused:
            create(RendezvousParameters("any", options.pop("endpoint"), "run", 1, 1, **options))
        secrets = " ".join(options.get(name, "") for name in ("password", "token")).split()
        assert not [secret for secret in secrets if secret in str(refused.value)]

    return test
