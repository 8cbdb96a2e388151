"""``python -m rdzv_conformance.chaos``."""

import os
import sys
from typing import Final

_QUIET: Final = {"TORCH_CPP_LOG_LEVEL": "FATAL", "RES_OPTIONS": "attempts:0"}
"""For agents that import torch: it prints a stack for each connection that fails, which are many here, and looks up the
name of both ends of each, which takes seconds where no DNS server answers."""


def _run() -> int:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        # Ctrl-C may come while this is imported, which takes a while.
        from .command import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_run())
