"""Recognizes exceptions raised by signal handlers."""

from __future__ import annotations

import signal


def from_signal(error: BaseException) -> bool:
    """True if a signal handler's code is among the frames of the traceback."""
    handlers = [getattr(one, "func", one) for one in map(signal.getsignal, signal.valid_signals()) if callable(one)]
    codes = [getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in handlers]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None
