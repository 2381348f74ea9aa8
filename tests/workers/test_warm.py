"""Shared state is built once, published whole, and built again after a crash or damage."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from spyre_workers.backends import warm
from spyre_workers.backends.isa import plan_for
from spyre_workers.errors import CompileError


def build_slowly(directory):
    (directory / "part").write_bytes(b"whole" * 1000)
    with (directory.parent / "builds").open("a") as count:
        count.write("x")
    time.sleep(1.0)


def provide(final):
    warm._provide(final, [], build_slowly)


def test_shared_state_wanted_by_two_processes_is_built_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=provide, args=(tmp_path / "root" / "base",)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "root" / "builds").read_text() == "x"
    assert warm._usable(tmp_path / "root" / "base")


def test_shared_state_build_killed_leaves_nothing_usable_and_the_next_completes(tmp_path):
    final = tmp_path / "root" / "base"
    process = multiprocessing.get_context("spawn").Process(target=provide, args=(final,))
    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("root/base.new-*/part")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not final.exists()
    assert list(tmp_path.glob("root/base.new-*"))
    provide(final)
    assert warm._usable(final)
    assert not list(tmp_path.glob("root/base.new-*"))


@pytest.mark.parametrize("damage", ["shorter", "other", "absent", "index"])
def test_damaged_shared_state_is_not_used_and_is_rebuilt(tmp_path, damage):
    final = tmp_path / "root" / "base"
    provide(final)
    part = final / "part"
    part.chmod(0o600)
    if damage == "shorter":
        part.write_bytes(b"who")
    elif damage == "other":
        part.write_bytes(b"WHOLE" * 1000)
    elif damage == "absent":
        part.unlink()
    else:
        (final / "index.json").write_bytes(b'[{"name": "../../etc/passwd", "digest": null}]')
    assert not warm._usable(final)
    provide(final)
    assert warm._usable(final)
    assert part.read_bytes() == b"whole" * 1000


def test_toolchains_unused_for_long_are_removed_when_another_is_built(tmp_path):
    old = tmp_path / ("0" * 32)
    recent = tmp_path / ("1" * 32)
    for directory in (old, recent):
        directory.mkdir()
    os.utime(old, (1, 1))
    provide(tmp_path / ("2" * 32) / "base")
    assert not old.exists()
    assert recent.exists()


def test_key_of_shared_state_follows_the_compiler_but_not_the_code_generator(record):
    import msgspec

    assert warm._key(record) == warm._key(msgspec.structs.replace(record, backend_sources="other"))
    assert warm._key(record) != warm._key(msgspec.structs.replace(record, cxx="other"))
    assert warm._key(record) != warm._key(msgspec.structs.replace(record, flags=("-O9",)))


def test_plan_of_forged_target_is_refused():
    from spyre_cache.objects.target import Target

    forged = Target(kind="cpu", name="cpu/native", arch="x86_64", isa="native -fplugin=evil.so")
    with pytest.raises(CompileError, match="cpu/native"):
        plan_for(forged)
