"""`submit`: captures and plans a model, hands out what is missing, and brings the build to its end or leaves it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from spyre_build import builds
from spyre_build.building import Building, new_id
from spyre_build.errors import UsageError
from spyre_build.events import Events, NullEvents
from spyre_build.frontend.custom import declare
from spyre_build.frontend.factory import load_spec
from spyre_build.frontend.model import build_model
from spyre_build.frontend.partition import BlockPartition
from spyre_build.plan import choose_targets, make_plan
from spyre_build.publishing import golden_of, plan_of, store_fragments
from spyre_build.spec import WEIGHT_MODES, WeightMode
from spyre_build.workshop import workshop
from spyre_cache.cache import Cache
from spyre_cache.refs import check_name, check_version
from spyre_workers.toolchain import toolchain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spyre_build.outcome import Build
    from spyre_build.spec import ModelSpec
    from spyre_cache.objects.target import Target
    from spyre_workers.executor import Executor

_RECENT = 50


def submit(  # noqa: PLR0913  the words users type, all by name
    spec: Any,
    *,
    targets: Sequence[str] | None = None,
    tag: str | None = None,
    weights: WeightMode = "store",
    cache: Cache | str | Path | None = None,
    jobs: int | None = None,
    audit: float = 0.0,
    partition: str | BlockPartition | None = None,
    events: Events | None = None,
    seq: int = 64,
    batch: int = 1,
    salt: str = "",
    broker: str | None = None,
    detach: bool = False,
    started: float | None = None,
) -> Build:
    """Compiles a model with no device.

    Args:
        spec: a SPEC string, a directory with a `config.json`, a ModelSpec, or what a factory may return.
        targets: target names; by default the highest CPU level of this host.
        tag: `name` or `name:version` to release the result under; a bare name takes the next whole number.
        weights: `store` keeps tensors in the cache, `external` their names and shapes, `none` nothing at all.
        cache: a cache or its path; by default the settings'.
        jobs: compilations side by side.
        audit: share of compiled fragments, in percent, that are compiled once more and compared.
        partition: text form of the partition pass.
        events: hears what happens.
        seq: tokens of the example, for a `config.json`.
        batch: sequences of the example, for a `config.json`.
        salt: keeps a tenant's keys apart.
        broker: URL of a Redis whose workers compile; by default the settings', and without one this machine compiles.
        detach: come back once everything is handed out; the workers bring the build to its end.
        started: reading of `time.time` at which the build began, for callers who had things to do before.

    Raises:
        BuildError: the model cannot be built at all; failed fragments are reported in the Build instead.
        CacheError: the cache cannot be used.
    """
    if weights not in WEIGHT_MODES:
        raise UsageError(f"weights is one of {', '.join(WEIGHT_MODES)}, not {weights!r}")
    from spyre_build.config import load_settings

    release = _parse_tag(tag)
    settings = load_settings()
    broker = settings.broker if broker is None else broker
    if detach and broker is None:
        raise UsageError("a build that is left needs workers elsewhere: --detach goes with --broker")
    with ExitStack() as stack:
        if not isinstance(cache, Cache):
            cache = stack.enter_context(Cache.open(cache or settings.cache, write=settings.write))
            if events is not None:
                cache.on_note(events.note)
        cutting = partition if isinstance(partition, BlockPartition) else BlockPartition.parse(partition or "blocks")
        options = _Options(
            targets=targets,
            release=release,
            weights=weights,
            jobs=jobs,
            audit=audit,
            partition=cutting,
            seq=seq,
            batch=batch,
            salt=salt,
            broker=broker,
            detach=detach,
        )
        return _Submission(spec, options, cache, events or NullEvents(), started or time.time()).run()


def _parse_tag(tag: str | None) -> tuple[str, str] | None:
    if tag is None:
        return None
    name, colon, version = tag.partition(":")
    check_name(name)
    if colon:
        check_version(version)
    return name, version


@dataclass(frozen=True)
class _Options:
    targets: Sequence[str] | None
    release: tuple[str, str] | None
    weights: WeightMode
    jobs: int | None
    audit: float
    partition: BlockPartition
    seq: int
    batch: int
    salt: str
    broker: str | None
    detach: bool


class _Submission:
    """One run of `submit`: what needs the model. What does not is `Building`'s."""

    def __init__(self, spec: Any, options: _Options, cache: Cache, events: Events, started: float) -> None:
        self.words, self.options, self.cache, self.events = spec, options, cache, events
        said = spec if isinstance(spec, str) else type(spec).__name__
        record = builds.BuildRecord(id=new_id(), started=started, spec=said, origin=builds.me())
        self.building = Building(cache, record, events)

    def run(self) -> Build:
        """Everything; the build's record is kept whatever happens."""
        with self.building.kept(), self.cache.lease(self.building.id):
            self._run()
        return self.building.build

    def _run(self) -> None:
        options = self.options
        with self.building.phase("import", since=self.building.record.started):
            targets = choose_targets(options.targets, here=options.broker is None)
            spec = load_spec(self.words, weights=options.weights, seq=options.seq, batch=options.batch)
            imports = declare(spec.custom_ops).imports
        name = options.release[0] if options.release else spec.name or type(spec.module).__name__.lower()
        self.building.name(name)
        with workshop(self.cache, options.broker, jobs=options.jobs, imports=imports) as (claims, executor):
            self.building.claims = claims
            if not self._built_before():
                executor.start(toolchain(), targets)  # headers and server warm up while the model is captured
            self._build(spec, targets, executor)

    def _built_before(self) -> bool:
        """Whether the last build of these words went well: then most likely nothing is to be compiled now."""
        record = self.building.record
        for known in islice(builds.recent(self.cache), _RECENT):
            if known.id != record.id and known.spec == record.spec:
                return known.status == "ok"
        return False

    def _build(self, spec: ModelSpec, targets: Sequence[Target], executor: Executor) -> None:
        building, options = self.building, self.options
        outlast = building.patience.outlast
        building.events.phase("capture")
        model = build_model(spec, options.partition)
        building.spent(model.seconds)
        building.build.notes += model.notes
        planned = make_plan(model.pool.digests, targets, toolchain(), options.salt)
        building.look_up(planned)
        if building.missing:
            with building.phase("dispatch"):
                outlast(lambda: store_fragments(self.cache, model, building.missing))
            building.drive(executor)
        # What follows needs the model, and is done while others compile.
        with building.phase("publish"):
            plan = outlast(lambda: plan_of(self.cache, spec, model, targets, options.weights, options.salt))
        with building.phase("record"):
            golden = outlast(lambda: golden_of(self.cache, spec, model, options.weights))
        building.settle_plan(plan, name=building.build.name, release=options.release, golden=golden)
        if options.detach and building.missing:
            building.leave()
            return
        building.wait()
        if options.audit > 0:
            building.audit(options.audit)
        building.finish()


__all__ = ["submit"]
