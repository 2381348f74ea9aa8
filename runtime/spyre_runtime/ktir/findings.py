"""What is found wrong with a kernel, each thing under the name of the rule it breaks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from spyre_runtime.errors import KtirRuleError

if TYPE_CHECKING:
    from xdsl.ir import Operation

MAX_FINDINGS: Final = 64

RULES: Final[dict[str, str]] = {
    "ir": "operations agree with their operands, results and bodies",
    "op": "operations are ones the emulator knows",
    "grid": "a grid has 1 to 32 cores, as many as the plan, and ids as many as its dims",
    "dtype": "values are f16, f32, i32 or i1; a view has the type of its buffer, a moved tile that of its view",
    "set": "coordinate sets are boxes from 0, of the shape of what they describe; orders are the identity",
    "space": "views are of global memory; views of a core or of several parts are not emulated",
    "segments": "a kernel has at most 7 buffers of 16 GiB, one a segment",
    "span": "what one core touches of a buffer lies within 255.996 MiB",
    "view": "a view lies within its buffer",
    "tile": "a tile lies within its view",
    "stick": "tiles and their rows begin at sticks of 128 bytes",
    "race": "no core touches what another core writes",
    "overlap": "no element is written twice",
    "gap": "every element of an output is written",
    "missing-core": "every part of an output has a core that writes it",
    "alias": "outputs share no memory with inputs; a kernel stores into outputs only, and loads from inputs only",
    "lx": "what lives in a core at once fits 1,625,344 bytes",
    "dynamic": "loop bounds, tiles and conditions are known before the kernel runs",
    "steps": "a kernel ends within the limit of steps",
    "gather": "an index that is read lies within the view it indexes",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken rule.

    Attributes:
        rule: its name, of `RULES`.
        where: the operation or buffer.
        what: what came.
    """

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.what} ({RULES[self.rule]})"


class Findings:
    """Collects findings; one a rule and place, or stops at the first.

    Attributes:
        found: those so far.
    """

    def __init__(self, *, stop: bool = False) -> None:
        self.found: list[Finding] = []
        self._stop = stop
        self._places: set[tuple[str, str]] = set()

    def add(self, rule: str, where: Operation | str, what: str) -> None:
        """Records one.

        Raises:
            KtirRuleError: at once, where findings stop.
        """
        place = where if isinstance(where, str) else name_of(where)
        if (rule, place) in self._places or len(self.found) >= MAX_FINDINGS:
            return
        self._places.add((rule, place))
        self.found.append(Finding(rule=rule, where=place, what=what))
        if self._stop:
            raise self.error("")

    def error(self, kernel: str) -> KtirRuleError:
        """All of them as an error."""
        rules = tuple(dict.fromkeys(finding.rule for finding in self.found))
        text = "; ".join(str(finding) for finding in self.found[:8])
        more = f"; and {len(self.found) - 8} more" if len(self.found) > 8 else ""
        name = f"kernel {kernel}: " if kernel else ""
        return KtirRuleError(f"{name}{text}{more}", rules=rules)


def name_of(op: Operation) -> str:
    """An operation for people: its name, and what its first result is called or its place in the block."""
    hint = op.results[0].name_hint if op.results else None
    if hint:
        return f"%{hint} = {op.name}"
    block = op.parent_block()
    place = f" ({block.get_operation_index(op)})" if block is not None else ""
    return f"{op.name}{place}"
