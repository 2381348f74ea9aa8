"""Loading what was compiled, as a device node does."""

from __future__ import annotations

import torch


def load(blobs, result, directory):
    assert result.status == "ok", (result.failure, blobs.get(result.log).decode()[-3000:])
    directory.mkdir(parents=True, exist_ok=True)
    for output in result.outputs:
        (directory / output.name).write_bytes(blobs.get(output.digest))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(directory / "fragment.so"), 1)
