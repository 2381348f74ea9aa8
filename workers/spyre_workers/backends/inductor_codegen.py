"""Inductor as a source generator: an fx graph in, C++ out, nothing compiled and nothing probed.

Everything Inductor would read off this host (instruction set, number of threads) is given to it as data instead, so
that the same graph gives the same source anywhere.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._inductor import codecache, compile_fx, config, cpu_vec_isa, graph
from torch._inductor.codegen import common, cpp, cpp_micro_gemm
from torch._inductor.utils import output_node
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx

from spyre_workers.backends import decompositions
from spyre_workers.backends.wrapper import FragmentWrapper
from spyre_workers.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_workers.backends.isa import Vector

ASSUMED_THREADS = 8
"""How many threads loops are shaped for; how many run is decided at run time. A host's count must not shape code."""

_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory")

ORIGIN = "spyre_node"
"""Key in a node's `meta["custom"]` that carries the fragment node it came from through decomposition."""


class Sources(NamedTuple):
    """Generated C++.

    Attributes:
        wrapper: the function that runs the fragment, for the common object to call.
        kernels: the fused loops, empty when every operator is a library call.
        extern_nodes: JSON of the operators called through the proxy executor, or None.
    """

    wrapper: str
    kernels: str
    extern_nodes: str | None


class _Avx2(cpu_vec_isa.VecAVX2):  # type: ignore[misc]  # torch is untyped here
    """Chosen by the target; its truth, in the base a compiled and loaded probe, is no question."""

    def __bool__(self) -> bool:
        return True


class _Avx512(cpu_vec_isa.VecAVX512):  # type: ignore[misc]  # torch is untyped here
    """As above."""

    def __bool__(self) -> bool:
        return True


class _Neon(cpu_vec_isa.VecNEON):  # type: ignore[misc]  # torch is untyped here
    """As above."""

    def __bool__(self) -> bool:
        return True


_VECTORS: dict[Vector, Any] = {
    "none": cpu_vec_isa.invalid_vec_isa,
    "avx2": _Avx2(),
    "avx512": _Avx512(),
    "neon": _Neon(),
}


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _static_depth(decide: Any) -> Any:
    """Loops too small to share stay serial, as with a fixed number of threads.

    Inductor opens a parallel region around every loop when the number of threads is dynamic; for small ones the region
    costs more than the loop.
    """

    def decide_parallel_depth(self: Any, *args: Any) -> Any:
        with config.patch({"cpp.dynamic_threads": False}):
            return decide(self, *args)

    return decide_parallel_depth


_SETTINGS: dict[str, Any] = {
    "cpp_wrapper": True,
    "cpp.threads": ASSUMED_THREADS,
    "cpp.dynamic_threads": True,
    "cpp.enable_kernel_profile": False,
    "cpp.descriptive_names": "original_aten",
    "aot_inductor.output_path": "unused",
    "aot_inductor.debug_intermediate_value_printer": "0",
    "aot_inductor.metadata": {},
    # A cast in the model rounds, also between operators that Inductor fuses.
    "emulate_precision_casts": True,
    "size_asserts": False,
    "nan_asserts": False,
    "scalar_asserts": False,
    "alignment_asserts": False,
    "freezing": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "force_disable_caches": True,
    "fx_graph_cache": False,
    "compile_threads": 1,
    "worker_start_method": "spawn",
    "keep_output_stride": True,
    "comment_origin": False,
    "trace.enabled": False,
    "trace.provenance_tracking_level": 0,
}


def _settings() -> dict[str, Any]:
    known = config.get_config_copy()
    return {name: value for name, value in _SETTINGS.items() if name in known}


class _Recorder:
    """Knows which node Inductor was lowering when it gave up."""

    def __init__(self) -> None:
        self.node: Any = None

    def wrap(self, run_node: Any) -> Any:
        recorder = self

        def recorded(self: Any, node: Any) -> Any:
            recorder.node = node
            return run_node(self, node)

        return recorded


def decompose(module: Any, values: list[Any]) -> Any:
    """The module in the operators Inductor lowers; input mutations stay as trailing `copy_`."""
    fake = _fake_mode(values)
    with torch.no_grad(), fake or contextlib.nullcontext(), torch.fx.traceback.preserve_node_meta():
        interpreter = torch.fx.Interpreter(module)
        return make_fx(interpreter.run, decomposition_table=decompositions.table())(*values)


def _fake_mode(values: list[Any]) -> Any:
    for value in values:
        if isinstance(value, torch._subclasses.FakeTensor):  # noqa: SLF001  the public alias lacks it
            return value.fake_mode
    return None


def generate(module: Any, values: list[Any], vector: Vector) -> Sources:
    """C++ of a graph.

    Args:
        module: placeholders' values are `values`; mutations are trailing `aten.copy_` on placeholders.
        values: fake tensors and symbolic integers of one fake mode.
        vector: which vector classes to write for.

    Raises:
        CompileError: `unsupported`, naming nodes and operators, when Inductor cannot do the graph.
    """
    caught: dict[str, Any] = {}

    def catch(lowered: Any, wrapper: str, kernels: str, extern: str | None, **_rest: Any) -> list[str]:
        caught["sources"] = Sources(wrapper, kernels, extern)
        caught["constants"] = tuple(lowered.constants)
        return []

    recorder = _Recorder()
    isa = _VECTORS[vector]
    fake = _fake_mode(values) or torch._subclasses.FakeTensorMode(  # noqa: SLF001  as above
        shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()
    )
    common.init_backend_registration()
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(torch.no_grad())
        enter(config.patch(_settings()))
        for holder in (cpu_vec_isa, cpp_micro_gemm, codecache):
            enter(_patched(holder, "pick_vec_isa", lambda: isa))
        enter(_patched(codecache.AotCodeCompiler, "compile", staticmethod(catch)))
        enter(_patched(graph.GraphLowering, "run_node", recorder.wrap(graph.GraphLowering.run_node)))
        for kernel in (cpp.CppKernel, cpp.OuterLoopFusedKernel):
            enter(_patched(kernel, "decide_parallel_depth", _static_depth(kernel.__dict__["decide_parallel_depth"])))
        enter(_patched(common.device_codegens["cpu"], "cpp_wrapper_codegen", FragmentWrapper))
        try:
            _run(module, values, fake, enter)
        except CompileError:
            raise
        except Exception as error:
            raise _classified(error, recorder.node) from error
    if caught.get("constants"):
        raise CompileError(
            "unsupported",
            "a fragment holds no tensors (they are inputs), but lowering made the constants "
            + ", ".join(caught["constants"]),
        )
    return _stable(caught["sources"])


def _run(module: Any, values: list[Any], fake: Any, enter: Any) -> None:
    lowered = decompose(module, values)
    enter(V.set_aot_compilation(True))
    enter(V.set_fake_mode(fake))
    enter(torch._guards.tracing(torch._guards.TracingContext(fake)))  # noqa: SLF001  how Inductor is told of a fake mode
    lowered = compile_fx._recursive_joint_graph_passes(lowered, input_device=torch.device("cpu")) or lowered  # noqa: SLF001
    out = output_node(lowered)
    # Every output is the caller's: without this Inductor may choose their strides itself.
    out.meta["user_visible_output_idxs"] = [
        index for index, value in enumerate(out.args[0]) if isinstance(value, torch.fx.Node)
    ]
    compile_fx._recursive_record_user_visible_output_idxs(lowered)  # noqa: SLF001  the same for branches
    compile_fx.compile_fx_inner(lowered, values, is_inference=True, cpp_wrapper=True)


def _classified(error: BaseException, node: Any) -> CompileError:
    """The failure an exception stands for; what is not the machine's fault is the graph's."""
    error = getattr(error, "inner_exception", error)  # Inductor's wrapping
    text = str(error).strip() or type(error).__name__
    if isinstance(error, CompileError):
        return error
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return CompileError("out-of-memory", "the memory limit was reached while code was generated")
    if isinstance(error, OSError):
        return CompileError("infrastructure", f"the worker's machine refused while code was generated: {text[:400]}")
    origin = (getattr(node, "meta", None) or {}).get("custom", {}).get(ORIGIN)
    nodes = (origin,) if isinstance(origin, int) else ()
    ops = (str(node.target),) if node is not None and node.op == "call_function" else ()
    return CompileError("unsupported", f"Inductor cannot lower this graph: {text[:2000]}", nodes, ops)


def _stable(sources: Sources) -> Sources:
    """Extern nodes as canonical JSON without traces, so that they depend on the graph alone."""
    if sources.extern_nodes is None:
        return sources
    document = json.loads(sources.extern_nodes)
    for entry in document.get("nodes", ()):
        entry.get("node", {})["metadata"] = {}
    return sources._replace(extern_nodes=json.dumps(document, sort_keys=True, separators=(",", ":")))
