"""rdzv on a directory of files: a sample of a third party's backend.

`DirectoryBackend` has keys (level 2), `FileRegister` is PyTorch's register (level 1).
"""

from .backend import DirectoryBackend
from .register import FileRegister

__all__ = ["DirectoryBackend", "FileRegister"]
