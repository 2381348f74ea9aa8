"""Models without their weights: parameters on `meta` while a factory runs, fake tensors while a model is captured."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from spyre_build.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def parameters_on_meta(*, enabled: bool) -> Iterator[None]:
    """While active, each parameter goes to `meta` the moment it is registered; buffers stay real.

    Constructors allocate before they initialise, so that untouched pages are given back and a model of billions of
    parameters costs no memory. Ties survive: a parameter that is already on `meta` is left as the object it is.
    """
    if not enabled:
        yield
        return

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        del module, name
        if parameter is None or parameter.device.type == "meta" or type(parameter) is not nn.Parameter:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    handle = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        handle.remove()


Kind = Literal["parameter", "buffer", "constant"]


@dataclass
class Weight:
    """A tensor of the model that no caller passes.

    Attributes:
        name: first fully qualified name; `aliases` the others.
        kind: parameter, buffer, or constant (an unregistered attribute, a closure's or a literal tensor).
        tensor: as the model holds it; on `meta` when it has no data.
        persistent: whether the state dict holds it.
    """

    name: str
    kind: Kind
    tensor: torch.Tensor
    persistent: bool = True
    aliases: list[str] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """Whether it has data."""
        return bool(self.tensor.device.type != "meta")


class WeightTable:
    """All tensors of a module by identity, with their names; ties are one entry."""

    def __init__(self, module: nn.Module) -> None:
        self._by_id: dict[int, Weight] = {}
        self._keep: list[torch.Tensor] = []
        self._constants = 0
        for path, child in module.named_modules(remove_duplicate=False):
            unsaved = child._non_persistent_buffers_set  # noqa: SLF001  torch has no public face for it
            for name, parameter in child._parameters.items():  # noqa: SLF001
                self._note(_join(path, name), "parameter", parameter, persistent=True)
            for name, buffer in child._buffers.items():  # noqa: SLF001
                self._note(_join(path, name), "buffer", buffer, persistent=name not in unsaved)
        for path, child in module.named_modules():
            self._note_attributes(path, child)

    def _note(self, name: str, kind: Kind, tensor: torch.Tensor | None, *, persistent: bool) -> None:
        if tensor is None:
            return
        known = self._by_id.get(id(tensor))
        if known is not None:
            if name != known.name and name not in known.aliases:
                known.aliases.append(name)
            return
        self._add(tensor, Weight(name, kind, tensor, persistent))

    def _note_attributes(self, path: str, module: nn.Module) -> None:
        """Plain tensor attributes, also inside lists, tuples and dicts one level down."""
        for name, value in vars(module).items():
            if name in {"_parameters", "_buffers", "_modules"}:
                continue
            if isinstance(value, torch.Tensor):
                self._note(_join(path, name), "constant", value, persistent=False)
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        self._note(_join(path, f"{name}.{index}"), "constant", item, persistent=False)
            elif isinstance(value, dict) and not name.startswith("_"):
                for key, item in value.items():
                    if isinstance(item, torch.Tensor):
                        self._note(_join(path, f"{name}.{key}"), "constant", item, persistent=False)

    def _add(self, tensor: torch.Tensor, weight: Weight) -> None:
        self._by_id[id(tensor)] = weight
        self._keep.append(tensor)  # an id is only an identity while its object lives

    def add_constant(self, tensor: torch.Tensor) -> Weight:
        """A tensor met during capture that no module owns (a global, a closure's, a literal); by content later."""
        known = self._by_id.get(id(tensor))
        if known is None:
            known = Weight(f"constant.{self._constants}", "constant", tensor, persistent=False)
            self._constants += 1
            self._add(tensor, known)
        return known

    def rebind(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """`new` stands for the weight of `old` from now on."""
        self._add(new, self._by_id[id(old)])

    def get(self, tensor: torch.Tensor) -> Weight | None:
        """The weight that this very object is."""
        return self._by_id.get(id(tensor))

    def weights(self) -> list[Weight]:
        """Every weight once, in the order found."""
        return list({id(weight): weight for weight in self._by_id.values()}.values())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@contextmanager
def fake_weights(module: nn.Module, table: WeightTable, mode: Any) -> Iterator[None]:
    """Replaces every parameter and buffer by a fake CPU tensor of `mode`, and puts the real ones back at the end.

    Raises:
        CaptureError: a parameter lies on a device that is absent, or is a tensor subclass.
    """
    swapped: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    fakes: dict[int, torch.Tensor] = {}
    try:
        for path, child in module.named_modules(remove_duplicate=False):
            for store in (child._parameters, child._buffers):  # noqa: SLF001
                for name, tensor in list(store.items()):
                    # A module that stands at two places is met twice; its second visit finds fakes.
                    if tensor is None or isinstance(tensor, FakeTensor):
                        continue
                    fake = fakes.get(id(tensor))
                    if fake is None:
                        fake = _fake(tensor, mode, _join(path, name))
                        fakes[id(tensor)] = fake
                        table.rebind(tensor, fake)
                    swapped.append((store, name, tensor))
                    store[name] = fake
        yield
    finally:
        for store, name, tensor in reversed(swapped):
            store[name] = tensor


def _fake(tensor: torch.Tensor, mode: Any, name: str) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        raise CaptureError(
            f"weights are plain tensors, but {name} is a {type(tensor).__name__}",
            hint="unwrap the subclass (for example torchao's or DTensor's) before handing the model over",
        )
    if tensor.layout is not torch.strided:
        raise CaptureError(f"weights are strided tensors, but {name} is {tensor.layout}", hint="call .to_dense()")
    if tensor.device.type not in ("cpu", "meta"):
        raise CaptureError(
            f"{name} lies on {tensor.device}; a model is submitted with its tensors on cpu or meta",
            hint="call module.cpu() in the factory",
        )
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return nn.Parameter(fake, requires_grad=False) if isinstance(tensor, nn.Parameter) else fake
