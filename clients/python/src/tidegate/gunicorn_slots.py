"""How many requests at once the gunicorn worker works on that this process is. Imports nothing of gunicorn's."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any


def slots(client: object, pool: str) -> int:
    """What gunicorn's settings say; 0 (unknown) in its master, in children of a worker's own, and anywhere else.

    The worker is on the stack when it loads the application, when it handles a request, and when the master forks it
    with what was preloaded. Told to one client of a pool: another of the same process has no slots of its own.
    """
    pid, found = os.getpid(), _found(os.getpid())
    told, to = _TOLD.get(pool, (0, None))
    if not found or (told == pid and to is not None and to() not in (None, client)):
        return 0
    _TOLD[pool] = (pid, weakref.ref(client))
    return found


def _found(pid: int) -> int:
    frame: Any = sys._getframe()
    while frame := frame.f_back:
        if not str(frame.f_globals.get("__name__")).startswith("gunicorn."):
            continue
        for worker in (frame.f_locals.get("self"), frame.f_locals.get("worker")):
            if getattr(worker, "pid", None) not in (pid, "[booting]"):  # so is it called until it has been forked
                continue
            for kind in type(worker).__mro__:
                if kind.__name__ in _SETTINGS:
                    setting = _SETTINGS[kind.__name__]
                    slots = getattr(getattr(worker, "cfg", None), setting, 0) if setting else 1
                    return slots if isinstance(slots, int) else 0
    return 0


# The kinds of workers, and the setting that is their number of requests at once. Other kinds do not say.
_SETTINGS = {"SyncWorker": None, "ThreadWorker": "threads", "AsyncWorker": "worker_connections"}
_TOLD: dict[str, tuple[int, weakref.ref[object] | None]] = {}  # of each pool the process and the client
