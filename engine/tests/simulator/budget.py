"""How long the tests of the simulator may look for something."""

import os

SECONDS = float(os.environ.get("RDZV_SIMULATE_SECONDS", "60"))
"""Seconds of seeds in one test; a minute is what CI gives."""
