"""Explains a failed connection to the daemon in more detail than its errno."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat

from .connection import no_daemon
from .protocol import raised_here


def explain(path: str, error: OSError) -> str:
    """Returns the cause and the remedy."""
    if error.errno == errno.EAGAIN:
        return f"the daemon at {path} takes no connections: it is stopped or overloaded"
    try:
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"permission denied on {path}: {_cause(path)}"
        if error.errno == errno.ECONNREFUSED and not stat.S_ISSOCK(os.stat(path).st_mode):
            return f"{path} is no socket: set TIDEGATE_SOCKET to that of the daemon"
    except OSError as unknown:
        if not raised_here(unknown):
            raise
    return no_daemon(path, error)


def _cause(path: str) -> str:
    """Returns which directory or socket this process may not use, and why."""
    at = path
    while True:  # up to the directory that this process may not enter
        try:
            found = os.stat(at)
            break
        except PermissionError as denied:
            if not raised_here(denied):
                raise
            at = os.path.dirname(at) or "."
    user, group = _user_name(os.geteuid()), _group_name(found.st_gid)
    needed = stat.S_IXGRP if stat.S_ISDIR(found.st_mode) else stat.S_IWGRP
    cause = f"user {user} is not in group {group}"
    if not found.st_mode & needed:
        cause = f"{at} has mode {stat.S_IMODE(found.st_mode):04o}, without access for its group"
    return f"{cause}; see `tidegate doctor --as {user}`"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError as unknown:
        if not raised_here(unknown):
            raise
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError as unknown:
        if not raised_here(unknown):
            raise
        return str(gid)
