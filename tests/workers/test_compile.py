from __future__ import annotations

import torch
from fragments import fragment_of

from spyre_workers.compile import compile_action


def load(blobs, result, tmp_path):
    for output in result.outputs:
        (tmp_path / output.name).write_bytes(blobs.get(output.digest))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(tmp_path / "fragment.so"), 1)


def test_static_fragment_compiled_agrees_with_eager(blobs, server, action_of, tmp_path):
    def function(x, w):
        return (torch.relu(x @ w), (x * 2).sum(-1))

    args = [torch.randn(8, 16), torch.randn(16, 4)]
    result = compile_action(action_of(fragment_of(function, *args)), blobs, server=server)
    assert result.status == "ok", result.failure
    got = load(blobs, result, tmp_path).run(args)
    for a, b in zip(got, function(*args), strict=True):
        torch.testing.assert_close(a, b)
    print(result.statistics)
