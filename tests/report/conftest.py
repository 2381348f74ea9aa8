"""Shared by the tests of the report: their folder on the path."""

import sys
from pathlib import Path

# importlib mode puts no folder of tests on the path, and `made_builds` is a helper, not a test.
sys.path.insert(0, str(Path(__file__).parent))
