"""``python -m simulator``, from engine/tests; ``python3 dev.py simulate`` from anywhere."""

import sys


def _run() -> int:
    try:
        # Ctrl-C may come while this is imported, which takes a while.
        from .command import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_run())
