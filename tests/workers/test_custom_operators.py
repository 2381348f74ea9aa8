"""Operators that are not torch's own: compiled where their library is declared, refused by name where it is not."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from artifacts import load
from fragments import fragment_of

from spyre_workers.client import CompileServer
from spyre_workers.compile import compile_action

LIBRARY = Path(__file__).with_name("custom_library.py")


def clipped():
    importlib.import_module("custom_library")

    def function(x, w):
        return (torch.ops.spyre_test.soft_clip(x @ w, 0.5) * 2,)

    args = [torch.randn(3, 6), torch.randn(6, 6)]
    return fragment_of(function, *args), args, function


def test_declared_operator_is_called_and_required(blobs, action_of, tmp_path):
    fragment, args, function = clipped()
    with CompileServer(imports=(str(LIBRARY),)) as mine:
        result = compile_action(action_of(fragment), blobs, server=mine)
        again = compile_action(action_of(fragment), blobs, server=mine)
    assert result.agrees(again)
    assert [output.name for output in result.outputs] == ["fragment.so", "fragment.json"]
    assert result.requires.custom_ops == ("spyre_test::soft_clip.default",)
    runner = load(blobs, result, tmp_path / "artifact")
    torch.testing.assert_close(runner.run(args), list(function(*args)))


def test_undeclared_operator_is_named(blobs, server, action_of):
    result = compile_action(action_of(clipped()[0]), blobs, server=server)
    assert result.failure.kind == "infrastructure"
    assert "spyre_test::soft_clip" in result.failure.message


def test_operator_file_that_is_absent_is_named(blobs, action_of):
    with CompileServer(imports=("/nowhere/operators.py",)) as mine:
        result = compile_action(action_of(clipped()[0]), blobs, server=mine)
    assert result.failure.kind == "infrastructure"
    assert "/nowhere/operators.py" in result.failure.message
