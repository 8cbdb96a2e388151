"""rdzv on the stores of PyTorch's c10d.

`create_backend` makes the backend and its store from parameters; `C10dRendezvousBackend` is the class itself, for
a store that you bring. Neither imports torch before it is needed.
"""

from .backend import C10dRendezvousBackend
from .plugin import create_backend

__all__ = ["C10dRendezvousBackend", "create_backend"]
