from __future__ import annotations

import contextlib
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from spyre_runtime.errors import WeightsError
from spyre_runtime.safetensors import read_directory, read_file
from spyre_runtime.weights import read

TENSORS = {
    "odd": torch.arange(3, dtype=torch.uint8),
    "f": torch.randn(2, 3),
    "bf": torch.randn(4).bfloat16(),
    "b": torch.tensor([True, False]),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 5),
    "half": torch.randn(2, 2).half(),
    "f8": torch.randn(4).to(torch.float8_e4m3fn),
}


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_every_dtype_reads_as_it_was_written(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors", metadata={"format": "pt"})
    tensors = read_file(tmp_path / "m.safetensors")
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name].float(), tensor.float())


def test_tensors_that_share_bytes_are_refused(tmp_path):
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]},
    }
    with pytest.raises(WeightsError, match="'a' and 'b' share bytes"):
        read_file(write(tmp_path / "m.safetensors", header, bytes(12)))


def test_tensor_that_is_not_aligned_in_the_file_still_reads(tmp_path):
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F64", "shape": [1], "data_offsets": [1, 9]},
    }
    data = b"\x05" + bytes(torch.tensor([2.5], dtype=torch.float64).view(torch.uint8).tolist())
    assert read_file(write(tmp_path / "m.safetensors", header, data))["x"].item() == 2.5


def test_writing_to_what_was_read_leaves_the_file_alone(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    read_file(tmp_path / "m.safetensors")["f"].zero_()
    assert (tmp_path / "m.safetensors").read_bytes() == before


def one(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"x": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "header",
    [
        one(dtype="F99"),
        one(shape=(-2,)),
        one(shape=(3,)),
        one(offsets=(0, 16)),
        one(offsets=(8, 0)),
        one(offsets=(-8, 0)),
        one(shape=(1 << 40, 1 << 40)),
        one(shape=(1,) * 40),
        {"x": {"dtype": "F32"}},
        {"x": 3},
        [],
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_malformed_file_is_refused(tmp_path, header):
    path = write(tmp_path / "m.safetensors", header, b"\0" * 8)
    with pytest.raises(WeightsError, match="not a sound safetensors file"):
        read_file(path)


@pytest.mark.parametrize(
    "data", [b"", b"1234567", (1 << 62).to_bytes(8, "little"), (100).to_bytes(8, "little") + b"{}"]
)
def test_file_shorter_than_its_header_is_refused(tmp_path, data):
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(WeightsError):
        read_file(tmp_path / "m.safetensors")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_read_or_are_refused(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    with contextlib.suppress(WeightsError):
        read_file(tmp_path / "x.safetensors")
    write(tmp_path / "x.safetensors", data, b"\0" * 16)
    with contextlib.suppress(WeightsError):
        read_file(tmp_path / "x.safetensors")


def test_shards_of_a_directory_are_read_by_index_or_all(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "two.safetensors")
    assert read_directory(tmp_path).keys() == {"a", "b"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert read(tmp_path).keys() == {"a"}


@pytest.mark.parametrize("shard", ["../one.safetensors", "/etc/passwd", "", "..", 3, "a\0b"])
def test_index_that_leaves_the_directory_is_refused(tmp_path, shard):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(WeightsError, match="not in the directory"):
        read_directory(tmp_path)


def test_what_is_no_weights_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(WeightsError, match="has none"):
        read(tmp_path)
    with pytest.raises(WeightsError, match="is neither"):
        read(tmp_path / "gone.safetensors")
    with pytest.raises(WeightsError, match="a path or a state dict"):
        read(3)
    (tmp_path / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(WeightsError, match="weight_map"):
        read(tmp_path)
