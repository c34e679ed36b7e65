"""Delta debugging: finds a shorter list of faults with the same finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinds import Fault
    from run import Result


def shrink(
    faults: Sequence[Fault], families: set[str], again: Callable[[Sequence[Fault]], Result], most: int
) -> list[Fault]:
    """Drops parts of the list, first half of it, as long as one of `families` remains a finding; at most `most` runs.

    Faults keep their times, so that the rest is unchanged. Failures also depend on the machine, so one may be missed by
    chance: then more faults remain than necessary.
    """
    left, parts, runs = list(faults), 2, 0
    while len(left) > 1 and runs < most:
        size = -(-len(left) // parts)
        for first in range(0, len(left), size):
            fewer = left[:first] + left[first + size :]
            if runs >= most:
                return left
            runs += 1
            result = again(fewer)
            print(f"  {len(fewer)} faults: {'still wrong' if result.families & families else 'well'}", flush=True)
            if result.families & families:
                left, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(left), parts * 2)
    return left
