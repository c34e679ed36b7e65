"""Memory that detects a fork, however made, without a system call for the process id."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Sequence

MADV_WIPEONFORK = 18


def page(size: int) -> Sequence[int]:
    """Maps bytes of this process alone. The first is 1, and 0 in every child; always 0 before Linux 4.14.

    Where it is 0, compare the process id.
    """
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            made.madvise(MADV_WIPEONFORK)
            made[0] = 1
    return made  # type: ignore[return-value]
