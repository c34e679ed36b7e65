"""Memory by which a process sees that it was forked, in whatever way, without asking the kernel for its number."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Sequence

MADV_WIPEONFORK = 18


def page(size: int) -> Sequence[int]:
    """Bytes of this process alone. The first is 1, and 0 in every child; always 0 where the kernel cannot do that.

    Where it is 0 the number of the process tells. Linux can from 4.14 on.
    """
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            made.madvise(MADV_WIPEONFORK)
            made[0] = 1
    return made  # type: ignore[return-value]
