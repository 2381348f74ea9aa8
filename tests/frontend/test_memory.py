"""Examples and buffers that share memory."""

import pytest
import torch
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.frontend.model import build_model
from spyre_build.spec import as_spec
from spyre_build.tensors import tensor_bytes


class WritesItsFirst(nn.Module):
    def forward(self, x, y):
        x.add_(1)
        return y * 2


@pytest.mark.parametrize("second", [slice(0, 4), slice(2, 6)])
def test_written_example_that_shares_memory_with_another_is_refused(second):
    whole = torch.ones(8)
    with pytest.raises(CaptureError, match="x, which shares memory with y"):
        build_model(as_spec((WritesItsFirst().eval(), (whole[:4], whole[second]))))


def test_written_example_with_memory_of_its_own_is_taken():
    assert build_model(as_spec((WritesItsFirst().eval(), (torch.ones(4), torch.ones(4))))).programs


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(8.0).reshape(1, 8).expand(3, 8),
        torch.arange(12.0).unfold(0, 4, 2),
        torch.arange(40.0).reshape(5, 8)[1:4, ::3],
        torch.tensor(3.0),
        torch.randn(3, 4).t(),
    ],
)
def test_bytes_of_a_tensor_give_it_back_under_its_strides(tensor):
    flat = torch.frombuffer(bytearray(tensor_bytes(tensor)), dtype=tensor.dtype)
    assert torch.equal(flat.as_strided(tensor.shape, tensor.stride()), tensor)
