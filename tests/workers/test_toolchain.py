"""The fingerprint of what compiles: contents, not places; quick when nothing changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import msgspec
import pytest

from spyre_cache.codec import encode
from spyre_workers import toolchain as module
from spyre_workers.backends.cxx import find_compiler
from spyre_workers.capability import cannot_build, survey
from spyre_workers.errors import ToolchainError


def test_record_names_no_place_of_this_machine(record):
    data = encode(record)
    for place in (sys.prefix, str(Path.home()), tempfile.gettempdir(), "/usr", "site-packages"):
        assert place.encode() not in data


def test_record_computed_warm_is_quick_and_imports_no_torch(record):
    script = textwrap.dedent(
        """
        import sys, time
        from spyre_workers.toolchain import toolchain
        times = []
        for _ in range(5):
            started = time.perf_counter()
            toolchain()
            times.append(time.perf_counter() - started)
        assert "torch" not in sys.modules
        print(min(times))
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert float(done.stdout) < 0.03


def test_memo_gone_or_damaged_gives_the_same_record(record, monkeypatch, tmp_path):
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path))
    assert module.toolchain() == record
    (tmp_path / module._MEMO).write_bytes(b"{not json")
    assert module.toolchain() == record


def test_source_changed_changes_the_record(record, monkeypatch, tmp_path):
    sources = []
    for path in module._own_sources():
        copy = tmp_path / "sources" / path.name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
        sources.append(copy)
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_own_sources", lambda: iter(sources))
    assert module.toolchain() == record
    sources[0].write_text(sources[0].read_text() + "\n")
    changed = module.toolchain()
    assert changed.backend_sources != record.backend_sources
    assert msgspec.structs.replace(changed, backend_sources=record.backend_sources) == record


def test_machine_without_compiler_is_told_the_package():
    with pytest.raises(ToolchainError, match=r"install the package g\+\+"):
        find_compiler(os.uname().machine, {"PATH": "/nonexistent"})


def test_compiler_that_does_not_work_is_named(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho no licence >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(ToolchainError, match="no licence"):
        module.compiler_words(str(broken))


def test_survey_finds_what_this_machine_has():
    found = {finding.name: finding for finding in survey()}
    assert found["C++ compiler"].ok
    assert "torch" in found["toolchain"].text


def test_targets_of_this_machine_can_be_built_and_unknown_kinds_cannot():
    from spyre_cache.objects.target import TARGETS, Target

    here = [t for t in TARGETS.values() if t.arch == os.uname().machine]
    assert here
    assert all(cannot_build(t) == "" for t in here)
    assert "spyre/aiu" in cannot_build(Target(kind="spyre", name="spyre/aiu-32c", arch="aiu", isa="32c"))
