"""Where in the user's model something comes from: lines out of stack traces, module paths out of graph metadata."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SKIP = ("/torch/", "/spyre_build/", "/spyre_runtime/", "/spyre_workers/")
_ROOT = re.compile(r"^L\[['\"](?:self|args|fn|mod)['\"]\](?:\[\d+\])?\.?")
_MODULES = re.compile(r"\._modules\[['\"]([^'\"]+)['\"]\]")
_ITEM = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")


def source_line(stack_trace: str | None) -> str:
    """`file.py:12 in forward` of the innermost frame that is not torch's or ours; empty when there is none."""
    best = ""
    for file, line, function in _FRAME.findall(stack_trace or ""):
        if not any(part in file for part in _SKIP):
            best = f"{short_file(file)}:{line} in {function}"
    return best


def short_file(file: str) -> str:
    """A file's name for people: from the package on inside site-packages, the bare name elsewhere."""
    _, found, rest = file.partition("site-packages/")
    return rest if found else Path(file).name


def error_place(error: BaseException) -> str:
    """` (at model.py:12 in forward)` for an error that torch raised about the user's code, or nothing."""
    stack = getattr(error, "real_stack", None)
    text = "".join(traceback.format_list(stack)) if stack else ""
    if not text:
        text = str(error) + "".join(traceback.format_exception(error))
    place = source_line(text)
    return f" (at {place})" if place else ""


def module_path(name: str) -> str:
    """`layers.3.mlp` out of `L['self']._modules['layers']._modules['3'].mlp` and the like; empty for the root."""
    path = _ROOT.sub("", name)
    path = _MODULES.sub(r".\1", path)
    path = _ITEM.sub(r".\1", path)
    return path.strip(".")


def call_stack(node_meta: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """The module calls around a node, outermost first, without the root.

    Each is `(path, class, call)`: `call` tells calls of one module apart (`layers.3`, `layers.3@1`).
    """
    calls = []
    for key, (name, kind) in (node_meta.get("nn_module_stack") or {}).items():
        path = module_path(str(name))
        if not path:
            continue
        _, again, number = str(key).partition("@")
        class_name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        calls.append((path, class_name, f"{path}@{number}" if again else path))
    return tuple(calls)


DATA = "its Python depends on the values of a tensor"
DATA_HINT = "torch.cond, torch.where or a static argument take the place of Python that depends on data"

RUNS_HINT = (
    "check that the module runs on these arguments in plain PyTorch; what goes through numpy or other libraries "
    "has to be written in torch, or be an operator of its own (custom_ops)"
)


def reason(error: BaseException) -> str:
    """The first line that torch says, or what stands behind its words about its own symbols."""
    text = str(error)
    if "data-dependent" in text.lower():
        return DATA
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return first[:300]
