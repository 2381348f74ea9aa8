"""`submit`: capture, plan, look up, compile, verify, publish."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from spyre_build import builds
from spyre_build.errors import BuildError, UsageError, VerificationError
from spyre_build.events import Events, NullEvents
from spyre_build.frontend.custom import declare
from spyre_build.frontend.factory import load_spec
from spyre_build.frontend.model import Model, build_model
from spyre_build.frontend.partition import BlockPartition
from spyre_build.outcome import Build
from spyre_build.plan import Plan, PlannedAction, choose_targets, look_up, make_plan
from spyre_build.publishing import next_version, publish, verify_build
from spyre_build.spec import WEIGHT_MODES, ModelSpec, WeightMode
from spyre_cache.cache import Cache
from spyre_cache.codec import encode
from spyre_cache.objects.fragment import DESCRIPTION_TYPE, Description
from spyre_cache.refs import check_name, check_version
from spyre_workers.compile import audit as audit_action
from spyre_workers.local import LocalPool
from spyre_workers.toolchain import toolchain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from spyre_cache.objects.action import ActionResult
    from spyre_cache.objects.target import Target

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

    Raises:
        BuildError: the model cannot be built at all; failed fragments are reported in the Build instead.
        CacheError: the cache cannot be used.
    """
    if weights not in WEIGHT_MODES:
        raise UsageError(f"weights is one of {', '.join(WEIGHT_MODES)}, not {weights!r}")
    release = _parse_tag(tag)
    with ExitStack() as stack:
        if not isinstance(cache, Cache):
            if cache is None:
                from spyre_build.config import load_settings

                cache = load_settings().cache
            cache = stack.enter_context(Cache.open(cache))
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
        )
        return _Submission(spec, options, cache, events or NullEvents()).run()


def _parse_tag(tag: str | None) -> tuple[str, str] | None:
    if tag is None:
        return None
    name, _, version = tag.partition(":")
    check_name(name)
    if version:
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


class _Submission:
    """One run of `submit`; phases in order, each with its time."""

    def __init__(self, spec: Any, options: _Options, cache: Cache, events: Events) -> None:
        self.words, self.options, self.cache, self.events = spec, options, cache, events
        self.build = Build(id=_new_id(), name="", cache=str(cache.path))
        self.record = builds.BuildRecord(
            id=self.build.id, started=time.time(), spec=spec if isinstance(spec, str) else type(spec).__name__
        )
        self.started = self.mark = time.perf_counter()
        self.current = ""

    def run(self) -> Build:
        """Everything; the build's record is kept whatever happens."""
        try:
            with self.cache.lease(self.build.id):
                self._run()
        except UsageError:
            raise  # nothing was begun: it is no build
        except BaseException as error:
            self._keep(status="failed", error=_one_line(error))
            raise
        self._keep(status=self.build.status)
        return self.build

    def _phase(self, name: str) -> None:
        self._end_phase()
        self.current = name
        self.events.phase(name)

    def _end_phase(self) -> None:
        now = time.perf_counter()
        if self.current:
            self.build.seconds[self.current] = self.build.seconds.get(self.current, 0.0) + now - self.mark
        self.mark = now

    def _run(self) -> None:
        self._phase("import")
        targets = choose_targets(self.options.targets)
        spec = load_spec(self.words, weights=self.options.weights, seq=self.options.seq, batch=self.options.batch)
        self.build.name = (
            self.options.release[0] if self.options.release else spec.name or type(spec.module).__name__.lower()
        )
        pool = LocalPool(
            self.cache.blobs,
            jobs=self.options.jobs,
            imports=declare(spec.custom_ops).imports,
            builder=self.build.id,
        )
        with pool:
            if not self._built_before():
                pool.start(toolchain(), targets)  # headers and server warm up while the model is captured
            self._build(spec, targets, pool)
        self._end_phase()
        self.build.seconds["total"] = time.perf_counter() - self.started
        for phase in ("import", "capture", "partition", "lookup", "compile", "publish"):
            self.build.seconds.setdefault(phase, 0.0)

    def _built_before(self) -> bool:
        """Whether the last build of these words went well: then most likely nothing is to be compiled now."""
        for index, known in enumerate(builds.recent(self.cache)):
            if known.id != self.build.id and known.spec == self.record.spec:
                return known.status == "ok"
            if index > _RECENT:
                break
        return False

    def _build(self, spec: ModelSpec, targets: Sequence[Target], pool: LocalPool) -> None:
        self._phase("capture")
        model = build_model(spec, self.options.partition)
        self._end_phase()
        self.current = ""
        self.build.seconds |= model.seconds
        self.build.notes += model.notes
        self._phase("lookup")
        plan = make_plan(model.pool.digests, targets, toolchain(), self.options.salt)
        look_up(plan, self.cache)
        self.events.planned(len(plan.actions), len(plan.hits))
        self.build.peak_rss_bytes["plan"] = _peak_rss()
        self._note_plan(plan)
        results = dict(plan.hits)
        if plan.missing:
            self._phase("compile")
            self._store_fragments(model, plan)
            results |= self._compile(plan, pool)
        self.build.count(model, plan, results)
        self._note_plan(plan, results)
        self._phase("publish")
        self._publish(spec, model, plan, results, targets)

    def _publish(
        self,
        spec: ModelSpec,
        model: Model,
        plan: Plan,
        results: Mapping[str, ActionResult],
        targets: Sequence[Target],
    ) -> None:
        if self.build.status == "failed":
            return
        manifest = publish(self.cache, spec, model, plan, results, targets, self.options.weights)
        digest = manifest.digest()
        if self.build.status == "ok":
            self._phase("verify")
            note = verify_build(self.cache, spec, model, manifest, self.options.weights)
            self.build.notes += [note] if note else []
            self._phase("publish")
        self.build.manifest = digest
        if self.build.status == "ok" and self.options.release is not None:
            name, version = self.options.release
            version = version or next_version(self.cache, name, digest)
            self.cache.refs.tag(name, version, digest)
            self.build.name = f"{name}:{version}"

    # --- compile ---

    def _store_fragments(self, model: Model, plan: Plan) -> None:
        """Fragments and action documents, so that workers, replay and explain find them."""
        described = []
        with self.cache.blobs.batch():
            for fragment, digest, origins in zip(
                model.pool.fragments, model.pool.digests, model.pool.origins, strict=True
            ):
                self.cache.blobs.put(fragment.encoded())
                described.append((digest, self.cache.blobs.put(encode(Description(fragment=digest, origins=origins)))))
        for digest, blob in described:
            self.cache.statements.attach(digest, DESCRIPTION_TYPE, blob)
        for planned in plan.missing:
            self.cache.actions.describe(planned.action)

    def _compile(self, plan: Plan, pool: LocalPool) -> dict[str, ActionResult]:
        results: dict[str, ActionResult] = {}
        missing = {planned.key: planned for planned in plan.missing}
        for planned in missing.values():
            self.events.started(str(planned.action.fragment), planned.action.target.name)
        for action, result in pool.run([planned.action for planned in missing.values()]):
            kept = self._accept(result)
            results[action.key()] = kept
            self.events.finished(
                str(action.fragment),
                action.target.name,
                "compiled" if kept.status == "ok" else "failed",
                kept.statistics.seconds,
            )
        self._audit([missing[key] for key, result in results.items() if result.status == "ok"], results)
        rss = [result.statistics.peak_rss_bytes for result in results.values()]
        self.build.peak_rss_bytes["compile"] = max(rss, default=0)
        return results

    def _accept(self, result: ActionResult) -> ActionResult:
        """The result that counts; a failure that another run might not repeat is not remembered."""
        if result.status == "ok" or (result.failure is not None and result.failure.kind == "unsupported"):
            return self.cache.actions.put(result)
        return result

    def _audit(self, compiled: list[PlannedAction], results: Mapping[str, ActionResult]) -> None:
        """Compiles a sample once more.

        Raises:
            VerificationError: other bytes came.
        """
        if self.options.audit <= 0 or not compiled:
            return
        count = min(len(compiled), max(1, round(len(compiled) * min(self.options.audit, 100.0) / 100)))
        for planned in random.Random(self.build.id).sample(compiled, count):  # noqa: S311  a sample, not a secret
            difference = audit_action(planned.action, results[planned.key], self.cache.blobs)
            if difference:
                raise VerificationError(
                    f"compiling a fragment twice must give the same bytes: {difference}",
                    fragment=str(planned.action.fragment),
                    hint="`spyre-build doctor` shows the compiler; report it with the log of both",
                )

    # --- results ---

    # --- records ---

    def _note_plan(self, plan: Plan, results: Mapping[str, ActionResult] | None = None) -> None:
        actions = []
        for planned in plan.actions:
            result = (results or plan.hits).get(planned.key)
            outcome: Any = "planned"
            if result is not None:
                outcome = "failed" if result.status == "failed" else "hit" if planned.key in plan.hits else "compiled"
            actions.append(
                builds.BuildAction(
                    fragment=planned.action.fragment,
                    target=planned.action.target.name,
                    key=planned.key,
                    outcome=outcome,
                    error=result.failure.message.partition("\n")[0] if result and result.failure else "",
                    log=result.log if result else None,
                )
            )
        self.record = msgspec.structs.replace(self.record, actions=tuple(actions), name=self.build.name)
        self._keep(status="running")

    def _keep(self, *, status: Any, error: str = "") -> None:
        self.record = msgspec.structs.replace(
            self.record,
            status=status,
            name=self.build.name,
            manifest="" if self.build.manifest is None else str(self.build.manifest),
            summary=self.build.to_json(),
            error=error,
        )
        try:
            builds.keep(self.cache, self.record)
        except Exception:
            if status != "failed":  # the error that made the build fail is the one to report
                raise


def _new_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def _peak_rss() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _one_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, BuildError) else f"{type(error).__name__}: {text}"
