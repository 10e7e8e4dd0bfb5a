"""Memory that ends at a page nobody may read: one byte too far is a crash, not a lucky zero."""

from __future__ import annotations

import ctypes
import mmap

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Lay bytes down so that they end where an unreadable page begins; made once, used again and again."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.room = -(-bytes_max // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.room + PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if libc.mprotect(address + self.room, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def lay(self, content: bytes) -> memoryview:
        self.map[self.room - len(content) : self.room] = content
        return memoryview(self.map)[self.room - len(content) : self.room]
