"""A register backend: a file, with PyTorch's two methods and no more."""

import secrets
from pathlib import Path

from rdzv_core import RendezvousBackend, Token

from .errors import translated
from .lock import locked


class FileRegister(RendezvousBackend):
    """A register.

    Args:
        folder: For its files, and no others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return "file"

    def get_state(self) -> tuple[bytes, Token] | None:
        with translated(self._folder):
            try:
                token, _, state = (
                    (self._folder / "state").read_bytes().partition(b"\n")
                )
            except FileNotFoundError:
                return None
            return state, token

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        with translated(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            with locked(self._folder / "lock", timeout=10.0):
                there = self.get_state()
                if token != (there[1] if there else None):
                    return (*there, False) if there else None
                fresh = secrets.token_hex(8).encode()
                (self._folder / "new").write_bytes(fresh + b"\n" + state)
                (self._folder / "new").replace(self._folder / "state")
                return state, fresh, True
