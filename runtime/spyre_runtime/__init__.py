"""What a device node needs, and nothing more: precompiled models as callables."""

from spyre_runtime.errors import SpyreRuntimeError
from spyre_runtime.load import Entry, LoadedModel, load

__all__ = ["Entry", "LoadedModel", "SpyreRuntimeError", "load"]
