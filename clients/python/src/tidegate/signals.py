"""Tells the exceptions of signal handlers from those of the code that they interrupted."""

from __future__ import annotations

import signal


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it, while the application's own code ran: its code is among the frames."""
    handlers = [getattr(one, "func", one) for one in map(signal.getsignal, signal.valid_signals()) if callable(one)]
    codes = [getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in handlers]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None
