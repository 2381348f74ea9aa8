"""Helpers that several folders of tests use lie beside this file."""

import sys
from pathlib import Path

# importlib mode puts no folder of tests on the path.
sys.path.insert(0, str(Path(__file__).parent))
