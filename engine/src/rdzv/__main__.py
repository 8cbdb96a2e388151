"""``python -m rdzv`` is the command ``rdzv``, which is the package rdzv-cli."""

import sys

try:
    from rdzv_cli import main
except ModuleNotFoundError as error:
    if error.name != "rdzv_cli":
        raise
    sys.exit("The command rdzv is a package of its own. Install it with: pip install rdzv-cli")

if __name__ == "__main__":
    sys.exit(main())
