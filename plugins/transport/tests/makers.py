"""Fixtures that make what must be closed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

import pytest


class _Closed(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closed)


def closed(make: Callable[..., _C], *, before: str = "") -> Any:
    """What makes things as `make` does, and closes them in the end, before what the fixture `before` has made."""

    def fixture(request: pytest.FixtureRequest) -> Iterator[Callable[..., _C]]:
        if before:
            request.getfixturevalue(before)
        with ExitStack() as opened:

            def made(*arguments: Any, **options: Any) -> _C:
                one = make(*arguments, **options)
                opened.callback(one.close)
                return one

            yield made

    return pytest.fixture(fixture)
