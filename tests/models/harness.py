"""Stores captured models without compiling, or with what one pool compiled for many."""

import torch

from spyre_build.driving import compile_actions
from spyre_build.errors import BuildError
from spyre_build.frontend.model import build_model
from spyre_build.frontend.partition import BlockPartition
from spyre_build.plan import choose_targets, make_plan
from spyre_build.tensors import store_weights, used_weights
from spyre_cache.objects.manifest import Manifest
from spyre_workers.toolchain import toolchain


def captured(cache, spec):
    """The digest of a manifest with no artifacts: the `eager` device runs it."""
    model = build_model(spec, BlockPartition.parse("blocks"))
    for fragment in model.pool.fragments:
        cache.blobs.put(fragment.encoded())
    index = store_weights(cache, used_weights(model.programs, model.table), "store")
    return cache.put_manifest(
        Manifest(
            programs=tuple(model.programs),
            fragments=tuple(model.pool.digests),
            artifacts=(),
            weights=index,
            weight_mode="store",
            targets=(),
            custom_ops=tuple(sorted({*spec.custom_ops, *model.custom_ops})),
            partition=model.partition,
            torch=torch.__version__.partition("+")[0],
        )
    )


def warm(cache, specs, jobs=2):
    """Compiles the fragments of many models in one pool, so that each `submit` finds its own.

    A server of compiling processes costs seconds to start; submits of small models would pay that each.
    """
    tools, targets = toolchain(), choose_targets(None)
    missing = {}
    for spec in specs:
        try:
            model = build_model(spec, BlockPartition.parse("blocks"))
        except BuildError:
            continue  # its own test says so
        for fragment in model.pool.fragments:
            cache.blobs.put(fragment.encoded())
        for planned in make_plan(model.pool.digests, targets, tools):
            if cache.actions.get(planned.key) is None:
                missing.setdefault(planned.key, planned.action)
    for action in missing.values():
        cache.actions.describe(action)
    compile_actions(cache, missing, jobs=jobs)
    return len(missing)
