"""Finds how many concurrent requests this process works on as a gunicorn worker. Does not import gunicorn."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any


def slots(client: object, pool: str) -> int:
    """Returns the slots of gunicorn's settings; 0 (unknown) in its master, in a worker's children, and elsewhere.

    The worker is on the stack when it loads the application, when it handles a request, and when the master forks it
    with a preloaded application. Only one client of a pool in a process gets the slots, so that they count once.
    """
    pid, found = os.getpid(), _worker_slots(os.getpid())
    owner_pid, owner = _CLAIMS.get(pool, (0, None))
    if not found or (owner_pid == pid and owner is not None and owner() not in (None, client)):
        return 0
    _CLAIMS[pool] = (pid, weakref.ref(client))
    return found


def _worker_slots(pid: int) -> int:
    frame: Any = sys._getframe()
    while frame := frame.f_back:
        if not str(frame.f_globals.get("__name__")).startswith("gunicorn."):
            continue
        for worker in (frame.f_locals.get("self"), frame.f_locals.get("worker")):
            if getattr(worker, "pid", None) not in (pid, "[booting]"):  # the value before the fork
                continue
            for kind in type(worker).__mro__:
                if kind.__name__ in _SETTINGS:
                    setting = _SETTINGS[kind.__name__]
                    slots = getattr(getattr(worker, "cfg", None), setting, 0) if setting else 1
                    return slots if isinstance(slots, int) else 0
    return 0


# Worker classes, and the setting with their number of concurrent requests (None: 1). Other classes have none.
_SETTINGS = {"SyncWorker": None, "ThreadWorker": "threads", "AsyncWorker": "worker_connections"}
_CLAIMS: dict[str, tuple[int, weakref.ref[object] | None]] = {}  # pool: process id and client that has the slots
