"""Heap settings of the C library: freed memory stays in the process.

A step frees its activations at the end of backward. By default glibc returns them to the system, and the next step gets
the same memory back page by page, each page by a page fault: 6,720 faults and 0.1 s at 224x224 and batch size 8. Memory
that stays in the process costs nothing, and the peak is the same because the next step needs it again."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_FROM_HEAP = 32 << 20
"""The largest M_MMAP_THRESHOLD that glibc accepts: larger allocations are always mappings of their own (mallopt(3))."""


def keep_freed_memory() -> None:
    """Make the heap keep freed memory for the rest of the process. Does nothing if the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGEST_FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
