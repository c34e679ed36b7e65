"""What to say when the daemon cannot be reached, where more is known than the error itself."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd

from . import no_daemon


def trouble(path: str, error: BaseException) -> str:
    """The cause and its mend."""
    if isinstance(error, BlockingIOError):
        return f"the daemon at {path} takes no connections: it is stopped or overloaded"
    with contextlib.suppress(KeyError, OSError):
        if isinstance(error, PermissionError):
            user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.stat(path).st_gid).gr_name
            return f"permission denied on {path}: user {user} is not in group {group}"
    return no_daemon(path, error)
