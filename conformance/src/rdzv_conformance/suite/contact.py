"""The first contact: where no client of a test class has ever got an answer, one failed test says all there is."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from rdzv_core.backend import PutOutcome, PutResult, RendezvousBackend

_CALLS: Final = ("read", "read_all", "put", "delete", "open_lease", "get_state", "set_state")
"""Those that a service must answer. A `wait` may end without an answer."""


@dataclass
class Contact:
    """What the clients of one test class have heard of their service so far.

    Attributes:
        answered: Whether any call has ever returned with an answer.
        error: What the first call raised, in words: it may hold on to a client.
    """

    answered: bool = False
    error: str = ""

    @property
    def failure(self) -> str:
        """Why nothing more is tried; empty: all is well, or nothing was asked yet."""
        if self.answered or not self.error:
            return ""
        return f"no client of this class has ever got an answer: {self.error}"

    @contextmanager
    def made(self) -> Iterator[None]:
        """A client is made: an error is one of the first contact."""
        try:
            yield
        except Exception as error:
            self._fails(error)
            raise

    @contextmanager
    def watched(self, backend: type[RendezvousBackend]) -> Iterator[None]:
        """Until a call of any client of this type was answered, note what its calls end in."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS if not self.answered else ():
                if hasattr(backend, name):
                    patch.setattr(backend, name, self._noting(getattr(backend, name)))
            yield

    def forgive(self) -> None:
        """The test has passed: that its calls raised was asked for."""
        self.error = ""

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noting(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = call(*args, **kwargs)
            except Exception as error:
                self._fails(error)
                raise
            self.answered = self.answered or answer != PutResult(PutOutcome.UNKNOWN)
            return answer

        return noting

    def _fails(self, error: Exception) -> None:
        self.error = self.error or f"{type(error).__name__}: {error}"


_CONTACT: Final = pytest.StashKey[Contact]()


def contact_of(test: pytest.Item) -> Contact:
    """The contact of the test's class."""
    node = test.getparent(pytest.Class) or test
    return node.stash.setdefault(_CONTACT, Contact())
