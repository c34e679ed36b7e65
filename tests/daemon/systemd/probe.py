"""Runs instead of the daemon in the sandbox of the packaged unit, and prints its permissions as lines `may_NAME=…`."""

import errno
import os
import socket


def told(name: str, attempt) -> None:
    try:
        answer = attempt() or "yes"
    except TimeoutError:
        answer = "nothing comes of it"
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    print(f"may_{name}={answer}", flush=True)


def connect(address: str) -> None:
    with socket.socket() as to:
        to.settimeout(2)
        to.connect((address, 18432))


def write(path: str) -> None:
    with open(path, "w"):
        pass


told("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close())
told("vsock", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close())
told("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close())
told("connect_here", lambda: connect("127.0.0.1"))
told("connect_elsewhere", lambda: connect("192.0.2.1"))
told("write_etc", lambda: write("/etc/tidegate/tidegate.yaml"))
told("write_usr", lambda: write("/usr/bin/written"))
told("write_state", lambda: write("/var/lib/tidegate/written"))
told("write_group", lambda: write("/sys/fs/cgroup/cgroup.max.depth"))
told("read_group", lambda: open("/sys/fs/cgroup/cgroup.controllers").close())
told("become_root", lambda: os.setuid(0))
told("change_root", lambda: os.chroot("/"))
told("be_nice", lambda: os.nice(-5) and None)
os.remove("/var/lib/tidegate/written")
