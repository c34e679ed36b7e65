"""Faults of the process, its resources, its log, its sockets and its clock."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time

from servers import OWN_GROUP

from kinds import kind
from world import IS_ROOT, UIDS, Wrong, await_true, give, run_as

KEYS = ("steady", "window", "work")  # tokens that a crash grants again: those since the last copy
SOON = (0.0, 0.6)  # seconds between an end and a start


# The process.


@kind("process", blind=True, loses=KEYS, seconds=SOON)
def killed(world, host, rng):
    host.kill()
    yield
    host.start()


@kind("process", blind=True, loses=KEYS, seconds=(0.0, 0.2))
def killed_at_its_start(world, host, rng):
    host.kill()
    for _ in range(3):
        host.process = host.spawn()
        time.sleep(rng.uniform(0, 0.15))
        host.kill()
    yield
    host.start()


@kind("process", blind=True, loses=KEYS, seconds=SOON)
def aborted(world, host, rng):
    host.stop(signal.SIGABRT, (-signal.SIGABRT,))
    yield
    host.start()


@kind("process", restarts=True, seconds=SOON)
def terminated(world, host, rng):
    host.stop()
    yield
    host.start()


@kind("process", restarts=True, seconds=SOON)
def interrupted(world, host, rng):
    host.stop(signal.SIGINT)
    yield
    host.start()


@kind("process", blind=True, loses=KEYS, seconds=SOON)
def terminated_twice(world, host, rng):
    host.process.terminate()
    time.sleep(rng.choice([0, 0.01]))
    host.stop(expected=(0, 1))
    yield
    host.start()


@kind("process", restarts=True, seconds=(0.0, 0.1))
def upgraded(world, host, rng):
    """Another binary takes over immediately, without waiting."""
    new = host.place / "tidegate-new"
    if not new.exists():
        new.symlink_to(host.binary)
    host.process.terminate()
    before, host.binary = host.process, new.resolve()
    until = time.monotonic() + 20
    while True:  # 75: the old one still has the socket, and may reply on it
        host.process = host.spawn()
        with contextlib.suppress(Wrong):
            host.await_answer()
            before.wait(20)
            if host.process.poll() is None:
                break
        if host.process.poll() != 75 or time.monotonic() > until:
            raise Wrong(f"the next daemon of {host.name} ended with {host.process.poll()}: {host.last_lines()}")
    if before.wait(20) != 0:
        raise Wrong(f"the former daemon of {host.name} ended with {before.returncode}: {host.last_lines()}")
    yield


@kind("process", blind=True)
def stopped(world, host, rng):
    host.process.send_signal(signal.SIGSTOP)
    yield
    host.process.send_signal(signal.SIGCONT)


@kind("process")
def stopped_for_moments(world, host, rng):
    """Shorter than any client's deadline, so each gets its reply."""
    for _ in range(8):
        host.process.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.001, 0.03))
        host.process.send_signal(signal.SIGCONT)
        time.sleep(0.03)
    yield


@kind("process")
def second_daemon(world, host, rng):
    second = host.spawn()
    yield
    code = second.wait(20)
    if code != 75:
        raise Wrong(f"a second daemon at one path ended with {code}")


# Its resources.


LIMITS = {"nofile": "Max open files", "nproc": "Max processes", "as": "Max address space", "fsize": "Max file size"}


def limit(host, name, soft=None):
    """Lowers a limit of the running process, or restores it; as its own user, which needs no capability."""
    if soft is None:
        lines = pathlib.Path(f"/proc/{host.pid}/limits").read_text().splitlines()
        soft = next(line.removeprefix(LIMITS[name]).split()[1] for line in lines if line.startswith(LIMITS[name]))
    words = [f"--{name}={soft}:", "--pid", str(host.pid)]
    subprocess.run(["prlimit", *words], check=False, stderr=subprocess.DEVNULL, **run_as("daemon"))


@kind("process limits", blind=True)
def no_descriptor(world, host, rng):
    used = len(os.listdir(f"/proc/{host.pid}/fd"))
    limit(host, "nofile", used + rng.choice([-4, 0, 1, 3]))
    yield
    limit(host, "nofile")


@kind("process limits", needs="root")
def no_thread(world, host, rng):
    limit(host, "nproc", 1)
    yield
    limit(host, "nproc")


@kind("process limits", restarts=True, needs="root", seconds=(0.5, 2.0))
def few_threads_at_the_start(world, host, rng):
    """Its user runs another daemon. One decision thread is enough to serve; without one it does not start."""
    host.stop()
    others = sum(1 for _ in threads_of(UIDS["daemon"]))
    host.process = host.spawn(wrap=["prlimit", f"--nproc={others + rng.randint(2, 9)}:"])
    try:
        host.await_answer()
    except Wrong:
        if host.process.poll() != 1:
            raise
    yield
    if host.process.poll() is None:
        host.stop()
    host.start()


def threads_of(uid):
    for task in pathlib.Path("/proc").glob("[0-9]*/task/*"):
        with contextlib.suppress(OSError):
            if task.stat().st_uid == uid:
                yield task


@kind("process limits", blind=True, loses=KEYS, exits=(-signal.SIGABRT,))
def no_memory(world, host, rng):
    """A failed allocation ends the process."""
    size = int(pathlib.Path(f"/proc/{host.pid}/statm").read_text().split()[0]) * 4096
    limit(host, "as", size + (rng.choice([0, 1, 8]) << 20))
    flood = world.stranger(host.socket, "silent_peers", 1)
    yield
    world.end_helper(flood)
    if host.process.poll() is None:
        limit(host, "as")
    else:
        host.stop(expected=(-signal.SIGABRT,))
        host.start()


@kind("process limits state", unkept=True)
def no_file_size(world, host, rng):
    limit(host, "fsize", rng.choice([0, 100]))
    yield
    limit(host, "fsize")


@kind("process limits", blind=True)
def low_priority(world, host, rng):
    for task in os.listdir(f"/proc/{host.pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(task), 19)
    yield
    with contextlib.suppress(PermissionError, ProcessLookupError):
        for task in os.listdir(f"/proc/{host.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(task), 0)


# Its log.


@kind("log")
def log_unread(world, host, rng):
    """The pipe fills: each HUP and USR1 writes lines."""
    host.hears.clear()
    for _ in range(300):
        host.process.send_signal(rng.choice([signal.SIGHUP, signal.SIGUSR1]))
        time.sleep(0.001)
    yield
    host.hears.set()


def restarted_with(host, log):
    host.stop()
    host.start(log=log)
    yield
    host.stop()
    host.start()


@kind("process log", restarts=True)
def log_full(world, host, rng):
    yield from restarted_with(host, os.open("/dev/full", os.O_WRONLY))


@kind("process log", restarts=True)
def log_without_reader(world, host, rng):
    reader, writer = os.pipe()
    os.close(reader)
    yield from restarted_with(host, writer)


@kind("process log", restarts=True)
def log_closed(world, host, rng):
    host.stop()
    host.start(wrap=["sh", "-c", 'exec "$@" 2>&-', "sh"])
    yield
    host.stop()
    host.start()


# Its sockets.


@kind("path process", blind=True)
def path_removed(world, host, rng):
    away = host.place / "s.away"
    host.socket.rename(away)
    yield
    away.rename(host.socket)


@kind("path process", blind=True)
def path_taken_by_silence(world, host, rng):
    away = host.place / "s.away"
    host.socket.rename(away)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(host.socket))
        host.socket.chmod(0o666)
        silent.listen(rng.choice([0, 64]))
        yield
    host.socket.unlink()
    away.rename(host.socket)


@kind("path process", blind=True)
def path_is_a_directory(world, host, rng):
    away = host.place / "s.away"
    host.socket.rename(away)
    host.socket.mkdir()
    yield
    host.socket.rmdir()
    away.rename(host.socket)


@kind("path process", blind=True, needs="root")
def path_forbidden(world, host, rng):
    host.socket.chmod(0)
    yield
    host.socket.chmod(0o666)


@kind("path process", restarts=True)
def path_left_dead(world, host, rng):
    """A stale socket file, and a start that replaces it."""
    host.stop()
    with contextlib.suppress(FileNotFoundError):
        host.socket.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(host.socket))
    give(host.socket)
    yield
    host.start()


@kind("admin process")  # a stopped daemon has no socket to rename
def admin_path_removed(world, host, rng):
    away = host.place / "admin.away"
    await_true(host.admin.exists, f"the admin socket of {host.name}")  # a daemon that is starting binds it last
    host.admin.rename(away)
    yield
    if host.admin.exists() or not away.exists():  # a restart created it again
        away.unlink(missing_ok=True)
    else:
        away.rename(host.admin)


# Its clock.


def step(host, seconds):
    new = host.place / "offset.new"
    new.write_text(f"{seconds:+d}\n")
    new.chmod(0o644)
    new.rename(host.place / "offset")


@kind("clock", needs="faketime")
def clock_steps(world, host, rng):
    step(host, rng.choice([-86_400, -3600, -10, 10, 3600, 86_400]))
    yield
    step(host, 0)


@kind("clock", needs="faketime")
def clock_jitters(world, host, rng):
    for _ in range(30):
        step(host, rng.randint(-4000, 4000))
        time.sleep(0.02)
    yield
    step(host, 0)


@kind("clock process", restarts=True, needs="faketime")
def clock_steps_while_away(world, host, rng):
    host.stop()
    step(host, rng.choice([-3600, 3600]))
    host.start()
    yield
    step(host, 0)


# The machine.


@kind("machine!", seconds=(0.5, 2.0))
def busy_machine(world, host, rng):
    hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


@kind("machine!", seconds=(0.3, 1.0))
def many_processes(world, host, rng):
    script = "while :; do (true) & done"
    storm = subprocess.Popen(
        ["sh", "-c", script], **OWN_GROUP, **({"user": UIDS["stranger"]} if IS_ROOT else {})
    )
    yield
    os.killpg(storm.pid, signal.SIGKILL)
    storm.wait()
