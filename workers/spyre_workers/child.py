"""What a forked child does: one action in one private directory, and the outcome as a file beside it."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING

from spyre_cache.codec import Record, decode, encode
from spyre_cache.objects.action import Action, Failure, FailureKind, Requires, Statistics
from spyre_workers.errors import CompileError, ToolchainError

if TYPE_CHECKING:
    from pathlib import Path

    from spyre_cache.objects.fragment import Fragment

ACTION = "action.json"
FRAGMENT = "fragment-record.json"
OUTCOME = "outcome.json"
LOG = "compile.log"
_MESSAGE_LIMIT = 4000


class Outcome(Record, frozen=True, kw_only=True):
    """What became of the action; `outputs` are file names in the directory."""

    outputs: tuple[str, ...] = ()
    requires: Requires | None = None
    failure: Failure | None = None
    statistics: Statistics = Statistics()


def warm_up() -> None:
    """Imports the compiler and runs it once, so that children find everything in memory."""
    import torch

    torch.set_num_threads(1)  # a forked child must not inherit a pool of threads that are not there
    torch.hub.tqdm.monitor_interval = 0  # nor its progress bars' thread
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    import spyre_runtime.fakes
    import spyre_runtime.graph  # noqa: F401  loaded here for the children
    from spyre_workers.backends import inductor_codegen

    def sample(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # A little of everything a transformer has: each first use costs a child tens of milliseconds.
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        q = (y @ w).view(1, 4, 2, 16).transpose(1, 2)
        r = torch.cat([-q[..., 8:], q[..., :8]], -1) * c
        attended = torch.nn.functional.scaled_dot_product_attention(r, r, q, is_causal=True)
        out = attended.transpose(1, 2).reshape(1, 4, 32) @ w
        return (x + torch.nn.functional.silu(out) * y, torch.softmax(out.bfloat16(), -1))

    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        values = [torch.empty(1, 4, 32), torch.empty(32, 32), torch.empty(4, 16)]
        module = make_fx(sample)(*values)
    inductor_codegen.generate(module, values, "avx2")


def main(directory: Path) -> int:
    """Compiles what lies in a directory. The outcome is a file; the return value is the exit code."""
    log: list[str] = []
    started = time.monotonic()
    try:
        outcome = _compile(directory, log)
    except CompileError as error:
        log.append(f"{error.kind}: {error}")
        outcome = Outcome(failure=_failure(error))
    except ToolchainError as error:
        outcome = Outcome(failure=Failure(kind="infrastructure", message=str(error)[:_MESSAGE_LIMIT]))
    except MemoryError:
        outcome = Outcome(failure=Failure(kind="out-of-memory", message="the memory limit was reached"))
    except OSError as error:
        kind: FailureKind = "out-of-memory" if error.errno == errno.ENOMEM else "infrastructure"
        outcome = Outcome(failure=Failure(kind=kind, message=f"the worker's machine refused: {error}"[:_MESSAGE_LIMIT]))
    log.append(f"total: {time.monotonic() - started:.2f} s")
    # When even these cannot be written (disk full), the parent sees no outcome and says so.
    (directory / LOG).write_text("\n".join(log) + "\n", "utf-8")
    temporary = directory / f"{OUTCOME}.new"
    temporary.write_bytes(encode(outcome))
    temporary.replace(directory / OUTCOME)
    return 0


def _compile(directory: Path, log: list[str]) -> Outcome:
    from spyre_runtime.errors import SpyreRuntimeError
    from spyre_runtime.graph import decode_fragment
    from spyre_workers.backends.aot_inductor import build

    action = decode((directory / ACTION).read_bytes(), Action)
    try:
        fragment: Fragment = decode_fragment((directory / FRAGMENT).read_bytes())
    except SpyreRuntimeError as error:
        raise CompileError("unsupported", f"this fragment cannot be read: {error}") from None
    built = build(action, fragment, directory, log)
    return Outcome(
        outputs=tuple(name for name, _ in built.outputs),
        requires=built.requires,
        statistics=Statistics(
            codegen_seconds=built.codegen_seconds,
            cxx_seconds=built.cxx_seconds,
            link_seconds=built.link_seconds,
        ),
    )


def _failure(error: CompileError) -> Failure:
    return Failure(kind=error.kind, message=str(error)[:_MESSAGE_LIMIT], nodes=error.nodes, ops=error.ops)


def read_log(directory: Path, limit: int) -> str:
    """The child's log, then whatever it and its libraries printed, shortened in the middle."""
    parts = []
    for name in (LOG, "output.log"):
        with contextlib.suppress(OSError):
            parts.append((directory / name).read_text("utf-8", "replace"))
    text = "".join(parts)
    if len(text) > limit:
        text = text[: limit // 2] + "\n[...]\n" + text[-limit // 2 :]
    return text
