"""Run the comparison: ``python -m bench``."""

from .command import main

main()
