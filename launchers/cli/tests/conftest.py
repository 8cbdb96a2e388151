"""The fixtures of the core's tests that these use, too."""

from core.tests.conftest import install as install
from core.tests.test_inspector import shared as shared
