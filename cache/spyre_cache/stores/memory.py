"""Files as memory, without the file descriptor that Python's own mmap keeps open for as long as the mapping lives.

A model has thousands of weights and a process a thousand descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_private(fd: int, size: int) -> memoryview:
    """Copy-on-write view of a file's first `size` bytes; unmapped when nothing refers to it any more.

    Raises:
        OSError: the system refuses.
    """
    if size == 0:
        return memoryview(bytearray())
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    array = (ctypes.c_ubyte * size).from_address(address)
    # At exit the system unmaps, and other code may still read its tensors then.
    weakref.finalize(array, _libc.munmap, address, size).atexit = False
    return memoryview(array).cast("B")
