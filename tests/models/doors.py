"""Keys of a model's fragments by two ways in: `submit` with no weights, and the graph that `torch.compile` hands over.

As a program: prints `{family: {"submit": […], "compile": […]}}` for the families named, in their order;
for `family:submit` the first alone.
"""

import json
import sys
from pathlib import Path

import torch

from spyre_build.frontend.canonical import canonicalise
from spyre_build.frontend.capture import _examples
from spyre_build.frontend.cutting import cut, readers_of
from spyre_build.frontend.encode import Encoder
from spyre_build.frontend.lower import lower
from spyre_build.frontend.model import build_model
from spyre_build.frontend.partition import BlockPartition
from spyre_build.frontend.weightless import parameters_on_meta
from spyre_build.spec import Entry, ModelSpec


def keys_of_submit(make):
    """The fragments' digests in order of first use; no parameter has data."""
    with parameters_on_meta(enabled=True):
        module, kwargs = make()
    model = build_model(ModelSpec(module, {"forward": Entry((), kwargs)}))
    return [digest.hash for digest in model.pool.digests]


def keys_of_compile(make):
    """The same of what a back end of `torch.compile` receives, on real weights."""
    module, kwargs = make()
    found = []

    def grab(graph, _inputs):
        found.append(fragments(graph))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=grab, fullgraph=True)(**kwargs)
    (keys,) = found
    return keys


def fragments(graph):
    placeholder = next(iter(graph.graph.find_nodes(op="placeholder")))
    examples = _examples(graph, placeholder.meta["example_value"].fake_mode.shape_env)
    lowered = lower(graph, examples["examples"], examples["fake_mode"], "the graph")
    parts = cut(Encoder((), "the graph").encode(lowered), BlockPartition())
    readers, late = readers_of(parts.graph, parts.regions), {value for _, value in parts.late}
    keys = {}
    for place, indices in enumerate(parts.regions):
        made = [value for index in indices for value in parts.graph.nodes[index].values]
        wanted = {value for value in made if value in late or any(r > place for r in readers.get(value, ()))}
        canonical = canonicalise(parts.graph, indices, wanted, parts.sunk[place])
        keys.setdefault(canonical.fragment.digest().hash)
    return list(keys)


def main(names):
    sys.path.insert(0, str(Path(__file__).parent))
    from architectures import FAMILIES

    found = {}
    for word in names:
        name, _, only = word.partition(":")
        make = FAMILIES[name]
        found[name] = {"submit": keys_of_submit(make), "compile": [] if only else keys_of_compile(make)}
        print(name, file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
