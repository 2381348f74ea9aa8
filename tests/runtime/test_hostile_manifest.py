"""Manifests with damaged bytes: loaded and run, or one of our errors."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from handmade import linear, linear_program, put_manifest, weight_entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spyre_cache import Cache, CacheError
from spyre_cache.objects import program as p
from spyre_runtime import SpyreRuntimeError, load


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    cache = Cache.open(tmp_path_factory.mktemp("hostile") / "cache")
    weights = [weight_entry(cache, "lin.weight", torch.randn(4, 3)), weight_entry(cache, "lin.bias", torch.randn(3))]
    described = linear_program(output=p.DictTree(keys=(p.Plain(type="str", v="y"),), items=(p.Leaf(v=3),)))
    return cache, cache.blobs.get(put_manifest(cache, [described], [linear()], weights))


def try_it(cache, data):
    with contextlib.suppress(SpyreRuntimeError, CacheError):
        load(cache, cache.blobs.put(data), device="eager")(torch.randn(2, 4))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_manifest_with_damaged_bytes_runs_or_is_refused(stored, data):
    cache, good = stored
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(
            st.sampled_from(b'0123456789-"{}[],:aslftn\x00\xff')
        )
    try_it(cache, bytes(damaged))


def places(value, path=()):
    """Paths of all values inside parsed JSON."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for key, item in enumerate(value):
            yield from places(item, (*path, key))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_manifest_with_other_values_runs_or_is_refused(stored, data):
    cache, good = stored
    record = json.loads(good)
    at = record
    *path, last = data.draw(st.sampled_from([path for path in places(record) if path]))
    for key in path:
        at = at[key]
    at[last] = data.draw(
        st.sampled_from(
            [-1, 0, 1, 3, 99, 1 << 62, "", "s0", "weight", "state", "temp", "input", None, [], [0], {}, True]
        )
    )
    try_it(cache, json.dumps(record).encode())
