"""What a power cut can leave: operations recorded on a real directory, replayed up to any point.

The rules are POSIX's, not those of one kind file system: contents are safe after `fsync` of the file, a name after
`fsync` of its directory, in any order otherwise. A rename is one step. What is not safe yet may be there, be gone, or,
for contents, be there in part or as zeros.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from spyre_cache.fs import FileSystem

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Op:
    kind: str
    path: str = ""
    target: str = ""
    inode: int = -1
    data: bytes = b""


@dataclass
class Recording(FileSystem):
    """Does everything for real and writes it down."""

    base: Path
    ops: list[Op] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _note(self, op: Op) -> None:
        with self._lock:
            self.ops.append(op)

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.base)

    def mkdir(self, path):
        made = super().mkdir(path)
        if made:
            self._note(Op("mkdir", self._name(path)))
        return made

    def create(self, path, mode=0o644):
        fd = super().create(path, mode)
        self._open[fd] = os.fstat(fd).st_ino
        self._note(Op("create", self._name(path), inode=self._fresh(fd)))
        return fd

    def append(self, path, mode=0o644):
        existed = path.exists()
        fd = super().append(path, mode)
        if existed:
            self._open[fd] = self._numbers[os.fstat(fd).st_ino]
        else:
            self._note(Op("create", self._name(path), inode=self._fresh(fd)))
        return fd

    # Inode numbers are reused by the file system; ours are not.
    _numbers: dict[int, int] = field(default_factory=dict)

    def _fresh(self, fd: int) -> int:
        number = len(self.ops)
        self._numbers[os.fstat(fd).st_ino] = number
        self._open[fd] = number
        return number

    def write(self, fd, data):
        super().write(fd, data)
        self._note(Op("write", inode=self._open[fd], data=bytes(data)))

    def fsync(self, fd):
        super().fsync(fd)
        self._note(Op("fsync", inode=self._open[fd]))

    def close(self, fd):
        super().close(fd)
        self._open.pop(fd, None)

    def link(self, source, target):
        number = self._numbers.get(source.stat().st_ino, -1) if source.exists() else -1
        super().link(source, target)
        self._note(Op("link", self._name(source), self._name(target), number))

    def rename(self, source, target):
        number = self._numbers[source.stat().st_ino]
        super().rename(source, target)
        self._note(Op("rename", self._name(source), self._name(target), number))

    def unlink(self, path):
        gone = super().unlink(path)
        if gone:
            self._note(Op("unlink", self._name(path)))
        return gone

    def rmdir(self, path):
        super().rmdir(path)
        self._note(Op("rmdir", self._name(path)))

    def fsync_dir(self, path):
        super().fsync_dir(path)
        self._note(Op("fsync_dir", self._name(path)))


class Unsynced(FileSystem):
    """For looking at replays: what happens to them next does not matter."""

    def fsync(self, fd):
        pass

    def fsync_dir(self, path):
        pass


POLICIES = ("lost", "kept", "names_only", "zeros", "some")


def _directory(op: Op) -> str:
    return str(PurePosixPath(op.target or op.path).parent)


def replay(ops: list[Op], policy: str, seed: int, into: Path, *, ignored: str = "") -> None:
    """Makes the tree that a crash after `ops` may leave.

    Policies for what was not safe yet: `lost`, all `kept`, `names_only` (contents lost), `zeros` (names kept, contents
    of the right length but zero), `some` of each at random with torn writes. `ignored` names an operation that this
    disk takes and forgets: `fsync` or `fsync_dir`.
    """
    rng = random.Random(seed)
    safe_names: set[str] = set()
    kept: list[Op] = []
    for op in reversed(ops):
        if op.kind == "fsync_dir" and ignored != op.kind:
            safe_names.add(op.path)
        elif op.kind in {"mkdir", "create", "link", "rename", "unlink", "rmdir"}:
            chosen = policy in {"kept", "names_only", "zeros"} or (policy == "some" and rng.random() < 0.5)
            if chosen or _directory(op) in safe_names:
                kept.append(op)
    names: dict[str, int | None] = {".": None}
    for op in reversed(kept):
        _apply(names, op)
    contents = _contents(ops, policy, rng, ignored=ignored)
    for name, number in sorted(names.items()):
        path = into / name
        if number is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(contents[number])


def _apply(names: dict[str, int | None], op: Op) -> None:
    if _directory(op) not in names:
        return  # its directory did not survive, so neither did it
    if op.kind == "mkdir":
        names[op.path] = None
    elif op.kind == "create":
        names[op.path] = op.inode
    elif op.kind == "link":
        names.setdefault(op.target, op.inode)
    elif op.kind == "rename":
        names.pop(op.path, None)
        names[op.target] = op.inode
    else:
        names.pop(op.path, None)


def _contents(ops: list[Op], policy: str, rng: random.Random, *, ignored: str) -> dict[int, bytes]:
    safe: dict[int, bytes] = {}
    later: dict[int, bytes] = {}
    for op in ops:
        if op.kind == "create":
            safe[op.inode] = later[op.inode] = b""
        elif op.kind == "write":
            later[op.inode] += op.data
        elif op.kind == "fsync" and ignored != op.kind:
            safe[op.inode] = later[op.inode]
    found = {}
    for number, full in later.items():
        rest = full[len(safe[number]) :]
        if policy in {"lost", "names_only"}:
            rest = b""
        elif policy == "zeros":
            rest = bytes(len(rest))
        elif policy == "some":
            torn = rest[: rng.randint(0, len(rest))]
            rest = torn + bytes(rng.choice((0, len(rest) - len(torn))))
        found[number] = safe[number] + rest
    return found
