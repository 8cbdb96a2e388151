"""``python -m rdzv`` is the command ``rdzv``."""

import sys

from .cli import main

sys.exit(main())
