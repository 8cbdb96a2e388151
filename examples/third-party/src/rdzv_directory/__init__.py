"""rdzv on a directory of files: a sample of a third party's backend.

`DirectoryBackend` is a key-value backend, `FileRegister` a register backend as
PyTorch's.
"""

from .backend import DirectoryBackend
from .register import FileRegister

__all__ = ["DirectoryBackend", "FileRegister"]
