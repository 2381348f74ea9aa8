"""Runs AOTInductor libraries on this CPU, straight from the cache's files."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from spyre_cache.errors import BlobNotFoundError
from spyre_runtime.drivers.base import Call, Driver
from spyre_runtime.errors import ArtifactError, IncompatibleHostError, MissingPieceError
from spyre_runtime.host import cpu_features, lacking, machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_cache.digest import Digest
    from spyre_cache.objects.manifest import Artifact
    from spyre_cache.objects.target import Target
    from spyre_cache.stores.base import LocalBlobStore

LIBRARY: Final = "fragment.so"
CALLS: Final = "fragment.json"  # how the library's calls of custom operators look; torch wants it beside the library


class CpuDriver(Driver):
    """Loads each library once; the dynamic linker maps it from the cache's own file.

    Args:
        blobs: where libraries are.
    """

    name: ClassVar[str] = "cpu"

    def __init__(self, blobs: LocalBlobStore) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._loaded: dict[tuple[tuple[str, str], ...], Call] = {}

    def provides(self, target: Target) -> str | None:
        """See `Driver.provides`: architecture and CPU features."""
        if target.kind != "cpu":
            return f"{target.name} is no CPU target"
        if target.arch != machine():
            return f"{target.name} needs {target.arch}, and this host is {machine()}"
        missing = sorted(set(target.features) - cpu_features())
        return f"the CPU lacks {', '.join(missing)} for {target.name}" if missing else None

    def load(self, fragment: Digest, artifact: Artifact | None) -> Call:
        """See `Driver.load`: checks the requirements before any byte of the library is mapped."""
        assert artifact is not None
        what = f"the artifact of fragment {fragment.short} for {artifact.target}"
        lack = lacking(artifact.requires)
        if lack is not None:
            raise IncompatibleHostError(f"{what} does not run here: {lack}; build for a target this host provides")
        key = tuple((output.name, output.digest.hash) for output in artifact.outputs)
        if not any(output.name == LIBRARY for output in artifact.outputs):
            raise ArtifactError(f"{what} has no file {LIBRARY}: build it again")
        with self._lock:
            call = self._loaded.get(key)
            if call is None:
                try:
                    files = {output.name: self._blobs.path(output.digest) for output in artifact.outputs}
                except BlobNotFoundError as error:
                    raise MissingPieceError(
                        f"{what} is not in this cache ({error}): pull it, or build it again",
                        fragment=str(fragment),
                        target=artifact.target,
                    ) from None
                call = self._loaded[key] = _load(files, what)
        return call


def _load(files: dict[str, Path], what: str) -> Call:
    if CALLS not in files:
        return _open(str(files[LIBRARY]), what)
    # Blobs lie under their digests: for the moment of loading, links give the two the names that torch looks for.
    with tempfile.TemporaryDirectory(prefix="spyre-load-") as directory:
        for name in (LIBRARY, CALLS):
            (Path(directory) / name).symlink_to(files[name])
        return _open(str(Path(directory) / LIBRARY), what)


def _open(path: str, what: str) -> Call:
    try:
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)  # noqa: SLF001  the loader without Inductor
    except RuntimeError as error:
        raise ArtifactError(f"{what} cannot be loaded: {_first_line(error)}") from error
    run = runner.run
    tensor, int64 = torch.tensor, torch.int64
    # A run holds the GIL, but an operator written in Python gives it up half way: a second thread would then wait for
    # the container's only instance with the GIL in its hands, for ever. This lock waits without it.
    lock = threading.Lock()

    def call(inputs: Sequence[Any]) -> list[Any]:
        prepared = [tensor(v, dtype=int64) if type(v) is int else v for v in inputs]
        try:
            with lock:
                return run(prepared)  # type: ignore[no-any-return]
        except RuntimeError as error:
            raise ArtifactError(f"{what} failed while it ran: {_first_line(error)}") from error

    return call


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
