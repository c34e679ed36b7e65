"""Explains a failed connection to the daemon in more detail than its errno."""

from __future__ import annotations

import errno
import grp
import os
import pwd

from .connection import no_daemon
from .protocol import raised_here


def explain(path: str, error: OSError) -> str:
    """Returns the cause and the remedy."""
    if error.errno == errno.EAGAIN:
        return f"the daemon at {path} takes no connections: it is stopped or overloaded"
    if error.errno in (errno.EACCES, errno.EPERM):
        try:
            user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.stat(path).st_gid).gr_name
            return f"permission denied on {path}: user {user} is not in group {group}"
        except (KeyError, OSError) as unknown:
            if not raised_here(unknown):
                raise
    return no_daemon(path, error)
