"""What a forward changes beside its results is refused by name, and undone: a compiled program could not do it."""

import random

import pytest
import torch
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.frontend.model import build_model
from spyre_build.spec import as_spec

LOG: list[int] = []
COUNT = 0


class AppendsToAGlobalList(nn.Module):
    def forward(self, x):
        LOG.append(1)
        return x * len(LOG)


class AssignsAGlobal(nn.Module):
    def forward(self, x):
        global COUNT
        COUNT += 1
        return x * COUNT


class ChangesItsClass(nn.Module):
    count = 0

    def forward(self, x):
        type(self).count += 1
        return x * type(self).count


def helper():
    pass


class ChangesAFunction(nn.Module):
    def forward(self, x):
        helper.n = getattr(helper, "n", 0) + 1
        return x * helper.n


class ChangesADictArgument(nn.Module):
    def forward(self, x, notes):
        notes["twice"] = x * 2
        return x + 1


class KeepsAnAttribute(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return x + 1


class DrawsInPython(nn.Module):
    def forward(self, x):
        return x * random.random()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (AppendsToAGlobalList, "LOG"),
        (AssignsAGlobal, "COUNT"),
        (ChangesItsClass, "ChangesItsClass.count"),
        (ChangesAFunction, "helper"),
        (KeepsAnAttribute, "last"),
        (DrawsInPython, "random module"),
    ],
)
def test_forward_that_leaves_something_behind_is_refused_by_name(module, words):
    with pytest.raises(CaptureError, match=words):
        build_model(as_spec((module().eval(), (torch.randn(2),))))
    assert (LOG, COUNT, ChangesItsClass.count, vars(helper)) == ([], 0, 0, {})


def test_forward_that_changes_a_container_among_its_arguments_is_refused():
    with pytest.raises(CaptureError, match="list or dict among its arguments"):
        build_model(as_spec((ChangesADictArgument().eval(), (torch.randn(2), {}))))
