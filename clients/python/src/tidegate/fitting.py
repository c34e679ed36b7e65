"""What is done with a request that does not fit into a frame: its longest values become their digests."""

from __future__ import annotations

from . import Fault, _text, decode, encode


def fitted(parts: list[bytes], room: int) -> list[bytes]:
    """The elements of a judgement, of `room` bytes at most; the descriptors, the second, give way."""
    parts, lists = list(parts), decode(parts[1])
    while sum(map(len, parts)) > room:
        spots = [(one, i) for one in lists for i in range(1, len(one), 2)]
        one, i = max(spots, key=lambda spot: len(spot[0][spot[1]].encode()), default=([""], 0))
        if len(one[i].encode()) <= 33:
            raise Fault("it does not fit into a frame")
        one[i] = decode(b"\x91" + _text(one[i], 33, 0))[0]
        parts[1] = encode(lists)
    return parts
