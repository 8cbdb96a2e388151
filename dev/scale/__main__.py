"""Run the nodes: ``python -m scale``."""

from .command import main

main()
