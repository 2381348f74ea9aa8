"""What a CPU target means to the compilers: read off the target, never off the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from spyre_workers.errors import CompileError

if TYPE_CHECKING:
    from spyre_cache.objects.target import Target

Vector = Literal["none", "avx2", "avx512", "neon"]


class IsaPlan(NamedTuple):
    """How one instruction set is compiled for.

    Attributes:
        arch: machine architecture, in `platform.machine()` words.
        march: flags that pin the instruction set of kernels.
        base: flags of what is not a kernel (wrapper, common object): the lowest level of the architecture, so that
            one precompiled header and one object serve all its levels.
        macros: what torch's vector headers look at.
        vector: which vector classes Inductor writes for; `none` is scalar code, left to the compiler to vectorise.
    """

    arch: str
    march: tuple[str, ...]
    base: tuple[str, ...]
    macros: tuple[str, ...]
    vector: Vector


_X86 = ("-march=x86-64-v2", "-mtune=generic")
_ARM = ("-march=armv8-a",)

PLANS: dict[str, IsaPlan] = {
    "x86-64-v2": IsaPlan("x86_64", _X86, _X86, (), "none"),
    "x86-64-v3": IsaPlan("x86_64", ("-march=x86-64-v3", "-mtune=generic"), _X86, ("-DCPU_CAPABILITY_AVX2",), "avx2"),
    "x86-64-v4": IsaPlan(
        "x86_64",
        # GCC prefers 256-bit vectors for v4 in what it vectorises itself; Inductor's own code is 512 wide.
        ("-march=x86-64-v4", "-mtune=generic", "-mprefer-vector-width=512"),
        _X86,
        ("-DCPU_CAPABILITY_AVX512",),
        "avx512",
    ),
    "armv8-a": IsaPlan("aarch64", _ARM, _ARM, ("-DCPU_CAPABILITY_NEON", "-DAT_BUILD_ARM_VEC256_WITH_SLEEF"), "neon"),
}


def plan_for(target: Target) -> IsaPlan:
    """The plan of a CPU target.

    Raises:
        CompileError: the target is not a CPU's, or of a level this back end does not know.
    """
    plan = PLANS.get(target.isa) if target.kind == "cpu" else None
    if plan is None or plan.arch != target.arch:
        known = ", ".join(PLANS)
        raise CompileError(
            "unsupported", f"this back end compiles CPU targets of the levels {known}, not {target.name[:80]!r}"
        )
    return plan
