"""spyre-build: compile PyTorch models without a device, run the precompiled code on the device.

Names are imported when they are used, so that `import spyre_build` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spyre_build.loading import load
    from spyre_build.outcome import Build
    from spyre_build.spec import Entry, ModelSpec
    from spyre_build.submission import submit

__version__ = "0.1.0"
__all__ = ["Build", "Entry", "ModelSpec", "load", "submit"]

_HOMES = {
    "Build": "outcome",
    "Entry": "spec",
    "ModelSpec": "spec",
    "load": "loading",
    "submit": "submission",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'spyre_build' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spyre_build.{home}"), name)
