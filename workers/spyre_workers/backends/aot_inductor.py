"""A fragment to a shared library: Inductor writes the C++, our compiler calls build it, always to the same bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from spyre_cache.objects.action import Requires
from spyre_cache.objects.fragment import GraphArg, ListArg, OpArg
from spyre_workers.backends import cxx
from spyre_workers.backends.isa import plan_for
from spyre_workers.backends.warm import distrust, warm_state
from spyre_workers.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spyre_cache.objects.action import Action
    from spyre_cache.objects.fragment import Arg, Fragment, Graph
    from spyre_workers.backends.cxx import Compiler
    from spyre_workers.backends.inductor_codegen import Sources
    from spyre_workers.backends.isa import IsaPlan
    from spyre_workers.backends.warm import WarmState

BACKEND = "aot-inductor"
ARTIFACT = "fragment.so"
EXTERN_NODES = "fragment.json"
"""Beside the library under the same stem, the runner finds the operators that have no C entry point here."""

_OUR_NAMESPACES = ("aten", "prims", "higher_order", "sym")


class Built(NamedTuple):
    """Files of one compilation, in their order, and what a host must provide to load them."""

    outputs: tuple[tuple[str, Path], ...]
    requires: Requires
    codegen_seconds: float
    cxx_seconds: float
    link_seconds: float


def build(action: Action, fragment: Fragment, directory: Path, log: list[str]) -> Built:
    """Compiles a fragment in a directory of its own.

    Raises:
        CompileError: it cannot be compiled here, or at all; `kind` says which.
        ToolchainError: this machine lacks what compiles.
    """
    plan = plan_for(action.target)
    if action.options:
        names = ", ".join(name for name, _ in action.options)
        raise CompileError(
            "unsupported", f"this back end takes no options, but {names[:200]} came: submit without them"
        )
    compiler = cxx.find_compiler(plan.arch)
    started = time.monotonic()
    sources = _sources(fragment, plan)
    codegen = time.monotonic() - started
    log.append(f"code generation: {codegen:.2f} s, {len(sources.wrapper)} + {len(sources.kernels)} characters")
    warm = warm_state(action.toolchain, plan, compiler, log)
    started = time.monotonic()
    try:
        objects = _compile(sources, plan, compiler, warm, directory, log)
    except CompileError:
        distrust(warm)
        raise
    compiled = time.monotonic() - started
    link = _link(objects, plan, compiler, directory, log)
    outputs = [(ARTIFACT, directory / ARTIFACT)]
    if sources.extern_nodes is not None:
        (directory / EXTERN_NODES).write_text(sources.extern_nodes)
        outputs.append((EXTERN_NODES, directory / EXTERN_NODES))
    return Built(tuple(outputs), requires_of(action, fragment), codegen, compiled, link)


def requires_of(action: Action, fragment: Fragment) -> Requires:
    """What a host must provide to load what an action makes."""
    target = action.target
    return Requires(
        arch=target.arch,
        features=target.features,
        torch_abi=action.toolchain.torch.split("+")[0],
        device="cpu",
        custom_ops=tuple(sorted(custom_ops(fragment))),
    )


def custom_ops(fragment: Fragment) -> frozenset[str]:
    """Operators a fragment calls that are not torch's own."""
    return frozenset(op for op in _operators(fragment.graph) if op.split("::")[0] not in _OUR_NAMESPACES)


def _operators(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.op
        for arg in (*node.args, *(value for _, value in node.kwargs)):
            yield from _operators_of(arg)


def _operators_of(arg: Arg) -> Iterator[str]:
    if isinstance(arg, OpArg):
        yield arg.v
    elif isinstance(arg, GraphArg):
        yield from _operators(arg.graph)
    elif isinstance(arg, ListArg):
        for item in arg.items:
            yield from _operators_of(item)


def _sources(fragment: Fragment, plan: IsaPlan) -> Sources:
    from spyre_runtime.errors import OperatorMissingError, SpyreRuntimeError
    from spyre_runtime.graph import to_fx
    from spyre_workers.backends.inductor_codegen import ORIGIN, generate

    try:
        module = to_fx(fragment, fake=True, custom_ops=custom_ops(fragment))
    except OperatorMissingError as error:
        raise CompileError("infrastructure", f"{error}: this worker must import the library that defines it") from error
    except SpyreRuntimeError as error:
        raise CompileError("unsupported", f"this fragment cannot be read: {error}") from error
    values: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values.append(node.meta["val"])
        elif "index" in node.meta:
            node.meta["custom"] = {ORIGIN: node.meta["index"]}
    try:
        return generate(module, values, plan.vector)
    except CompileError as error:
        # What decomposition made is blamed on the operator it came from.
        nodes = tuple(index for index in error.nodes if index < len(fragment.graph.nodes))
        ops = tuple(fragment.graph.nodes[index].op for index in nodes) or error.ops
        raise CompileError(error.kind, str(error), nodes, ops) from error


def _compile(
    sources: Sources, plan: IsaPlan, compiler: Compiler, warm: WarmState, directory: Path, log: list[str]
) -> list[str]:
    """Objects of the wrapper and the kernels, made side by side; names are relative, so no path gets in."""
    root = cxx.torch_root()
    (directory / "wrapper.cpp").write_text(sources.wrapper)
    (directory / "kernels.cpp").write_text(sources.kernels)
    wrapper = ("-include", str(warm.wrapper_header), "wrapper.cpp", *cxx.wrapper_flags(plan, root))
    kernels = ("-include", str(warm.kernel_header), "kernels.cpp", *cxx.kernel_flags(plan, root))
    jobs = [cxx.Job(compiler, (*wrapper, "-frandom-seed=wrapper", "-c", "-o", "wrapper.o"), directory, log)]
    objects = ["wrapper.o"]
    if sources.kernels.strip():
        jobs.append(cxx.Job(compiler, (*kernels, "-frandom-seed=kernels", "-c", "-o", "kernels.o"), directory, log))
        objects.append("kernels.o")
    seconds = cxx.wait_all(jobs)
    log.append("C++: " + ", ".join(f"{name} {s:.2f} s" for name, s in zip(objects, seconds, strict=True)))
    return [*objects, str(warm.common_object)]


def _link(objects: list[str], plan: IsaPlan, compiler: Compiler, directory: Path, log: list[str]) -> float:
    libraries = cxx.torch_root() / "lib"
    native = plan.arch == cxx.host_arch()
    # Another architecture's torch is not here to link with; its symbols are found by name when the library is loaded.
    torch_flags = (f"-L{libraries}", "-ltorch_cpu", "-Wl,--as-needed", "-lc10", "-lgomp") if native else ("-lgomp",)
    flags = cxx.LINK_FLAGS if native else tuple(flag for flag in cxx.LINK_FLAGS if flag != "-Wl,-z,defs")
    seconds = cxx.run(compiler, (*flags, *objects, "-o", ARTIFACT, *torch_flags), directory, log)
    log.append(f"link: {seconds:.2f} s")
    return seconds
