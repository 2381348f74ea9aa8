"""Memory that two names share, and Python that a forward changes: right, or refused; never silently wrong."""

import contextlib

import pytest
import torch
from harness import captured
from torch import nn

import spyre_build
from spyre_build import Entry, ModelSpec
from spyre_build.errors import BuildError
from spyre_runtime.correct import compare
from spyre_runtime.errors import SpyreRuntimeError

pytestmark = pytest.mark.xdist_group("models-interpreted")
MEMORY = torch.zeros(4)


class Overlapping(nn.Module):
    """A buffer that is part of another, and written."""

    def __init__(self):
        super().__init__()
        base = torch.zeros(4)
        self.register_buffer("whole", base)
        self.register_buffer("part", base[:2])

    def forward(self, x):
        self.part.add_(x[:2])
        return self.whole * 2


class ViewOfWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("flat", self.lin.weight.data.view(-1))

    def forward(self, x):
        self.flat.mul_(0.5)
        return self.lin(x)


class WritesGlobal(nn.Module):
    def forward(self, x):
        MEMORY.add_(x)
        return MEMORY * 2


class AppendsToList(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x * 2)
        return sum(self.seen) + len(self.seen)


class FillsDictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.memo = {}

    def forward(self, x):
        if "last" in self.memo:
            x = x + self.memo["last"]
        self.memo["last"] = x
        return x * 2


class FillsNestedList(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = {"steps": [0]}

    def forward(self, x):
        self.state["steps"][0] += 1
        return x * self.state["steps"][0]


class WritesAttributeTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(4)

    def forward(self, x):
        self.total += x
        return self.total * 1


class AssignsBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        out = x + self.last
        self.last = x * 2
        return out


class Resizes(nn.Module):
    def forward(self, x):
        x.unsqueeze_(0)
        return x * 2


class Configured(nn.Module):
    """An object of the module's, changed in forward."""

    class Options:
        def __init__(self):
            self.step = 0

    def __init__(self):
        super().__init__()
        self.options = Configured.Options()

    def forward(self, x):
        self.options.step += 1
        return x * self.options.step


MODULES = [
    Overlapping, ViewOfWeight, WritesGlobal, AppendsToList, FillsDictionary, FillsNestedList, WritesAttributeTensor,
    AssignsBuffer, Resizes, Configured,
]  # fmt: skip


def calls():
    torch.manual_seed(3)
    return [torch.randn(4) for _ in range(3)]


def eager(make):
    MEMORY.zero_()
    torch.manual_seed(0)
    module = make()
    with torch.no_grad():
        found = [module(x.clone()).clone() for x in calls()]
    MEMORY.zero_()
    return found


@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
def test_memory_shared_or_python_changed_is_right_or_refused(make, shared_cache):
    expected = eager(make)
    torch.manual_seed(0)
    module = make()
    try:
        digest = captured(shared_cache, ModelSpec(module, {"forward": Entry((calls()[0],))}))
        model = spyre_build.load(digest, device="eager", cache=shared_cache)
        actual = [model(x.clone()) for x in calls()]
    except (BuildError, SpyreRuntimeError) as error:
        reason = str(error)
        assert len(reason) > 30
        return
    for mine, theirs in zip(actual, expected, strict=True):
        assert compare(mine, theirs).correct


@pytest.mark.parametrize(
    "make", [AppendsToList, FillsDictionary, FillsNestedList, Configured], ids=lambda make: make.__name__
)
def test_module_is_left_as_it_was_by_capture(make, shared_cache):
    module, fresh = make(), make()
    with contextlib.suppress(BuildError):
        captured(shared_cache, ModelSpec(module, {"forward": Entry((calls()[0],))}))
    with torch.no_grad():
        assert torch.equal(module(calls()[0]), fresh(calls()[0]))


class AddsKey(nn.Module):
    def forward(self, batch):
        batch["new"] = batch["x"] * 2
        return batch["new"] + 1


class AppendsArgument(nn.Module):
    def forward(self, items):
        items.append(items[0] * 2)
        return items[-1] + 1


@pytest.mark.parametrize(
    ("make", "argument"),
    [(AddsKey, lambda: {"x": torch.ones(3)}), (AppendsArgument, lambda: [torch.ones(3)])],
    ids=["dict", "list"],
)
def test_container_of_the_caller_that_forward_changes_is_right_or_refused(make, argument, shared_cache):
    try:
        digest = captured(shared_cache, ModelSpec(make(), {"forward": Entry((argument(),))}))
        model = spyre_build.load(digest, device="eager", cache=shared_cache)
        mine, theirs = argument(), argument()
        assert compare(model(mine), make()(theirs)).correct
        assert compare(mine, theirs).correct
    except (BuildError, SpyreRuntimeError) as error:
        reason = str(error)
        assert len(reason) > 30


class WritesOneReadsOther(nn.Module):
    def forward(self, a, b):
        a.add_(1)
        return a * b


@pytest.mark.parametrize("overlap", ["same", "view", "apart"])
def test_arguments_that_share_memory_are_right_or_refused(overlap, shared_cache):
    digest = captured(
        shared_cache, ModelSpec(WritesOneReadsOther(), {"forward": Entry((torch.ones(4), torch.ones(4)))})
    )
    model = spyre_build.load(digest, device="eager", cache=shared_cache)

    def arguments():
        memory = torch.arange(8.0)
        return {"same": (memory[:4], memory[:4]), "view": (memory[:4], memory[2:6]), "apart": (memory[:4], memory[4:])}[
            overlap
        ]

    theirs = arguments()
    expected = WritesOneReadsOther()(*theirs)
    mine = arguments()
    try:
        actual = model(*mine)
    except SpyreRuntimeError:
        assert overlap != "apart"
        return
    assert compare(actual, expected).correct
    assert compare(mine, theirs).correct
