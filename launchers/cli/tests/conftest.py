"""The fixtures of rdzv's tests that these use, too."""

from engine.tests.conftest import install as install
from engine.tests.test_inspector import shared as shared
