"""``python -m rdzv_cli`` is the command ``rdzv``."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
