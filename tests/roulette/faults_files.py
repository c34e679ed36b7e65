"""Faults of the state directory and of the rules."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time

from kinds import EVERY, kind
from world import Wrong, give

KEYS = ("steady", "window", "work")


# The state directory of a running daemon.


@kind("state", unkept=True, needs="root")
def disk_full(world, host, rng):
    filler = host.state / "filler"
    with contextlib.suppress(OSError), open(filler, "wb") as file:
        while True:
            file.write(bytes(1 << 20))
    yield
    filler.unlink(missing_ok=True)


@kind("state", unkept=True, needs="root")
def disk_read_only(world, host, rng):
    subprocess.run(["mount", "--bind", host.state, host.state], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", host.state], check=True)
    yield
    subprocess.run(["umount", "--lazy", host.state], check=True)


@kind("state", unkept=True)
def state_forbidden(world, host, rng):
    host.state.chmod(0)
    yield
    host.state.chmod(0o700)


@kind("state", unkept=True)
def state_emptied(world, host, rng):
    for path in host.state.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    yield


@kind("state", unkept=True)
def state_strewn_with_directories(world, host, rng):
    """Directories in which the daemon creates files."""
    made = [host.state / name for name in ("tables.new", "switches.new", "tables.tmp")]
    for path in made:
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            (path / "in").mkdir()
    yield
    for path in made:
        shutil.rmtree(path, ignore_errors=True)


# The state directory during a restart.


def damaged_while_away(host, damage):
    host.stop()
    damage()
    yield
    host.start()


SOON = (0.0, 0.3)


def flip(path, rng):
    data = bytearray(path.read_bytes() if path.exists() else b"")
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    give(path)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_flipped(world, host, rng):
    yield from damaged_while_away(host, lambda: flip(host.state / "tables", rng))


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_truncated(world, host, rng):
    tables = host.state / "tables"
    cut = lambda: tables.exists() and os.truncate(tables, rng.randrange(1 + tables.stat().st_size))  # noqa: E731
    yield from damaged_while_away(host, cut)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_are_huge(world, host, rng):
    def grow():
        with open(host.state / "tables", "ab") as file:
            file.truncate(1 << 33)
        give(host.state / "tables")

    yield from damaged_while_away(host, grow)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_are_a_pipe(world, host, rng):
    def swap():
        (host.state / "tables").unlink(missing_ok=True)
        os.mkfifo(host.state / "tables")
        give(host.state / "tables")

    yield from damaged_while_away(host, swap)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_are_a_link(world, host, rng):
    def swap():
        (host.state / "tables").unlink(missing_ok=True)
        (host.state / "tables").symlink_to(rng.choice(["/dev/zero", "/etc/passwd", "tables", "/nowhere"]))

    yield from damaged_while_away(host, swap)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def tables_are_a_directory(world, host, rng):
    def swap():
        (host.state / "tables").unlink(missing_ok=True)
        (host.state / "tables").mkdir()
        give(host.state / "tables")

    yield from damaged_while_away(host, swap)
    with contextlib.suppress(OSError):
        (host.state / "tables").rmdir()


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def hash_key_lost(world, host, rng):
    yield from damaged_while_away(host, lambda: (host.state / "hash-key").unlink(missing_ok=True))


@kind("process state", restarts=True, seconds=SOON)
def small_files_damaged(world, host, rng):
    """Damages small state files, which hold no counts."""

    def damage():
        for name in ("switches", "fleet-overrides", "rules", "rules-proven", "crashes"):
            if rng.random() < 0.5:
                flip(host.state / name, rng)

    yield from damaged_while_away(host, damage)


@kind("process state", blind=True, loses=KEYS, seconds=SOON)
def state_lost(world, host, rng):
    yield from damaged_while_away(host, lambda: [path.unlink() for path in host.state.iterdir() if path.is_file()])


@kind("process state", blind=True, loses=KEYS, unkept=True, seconds=(0.0, 2.0))
def state_locked_by_another(world, host, rng):
    host.stop()
    with open(host.state / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        host.start()
        yield
    host.stop()
    host.start()


def traced(host, what):
    """Restarts the daemon with a disk whose calls strace fails."""
    host.stop()
    wrap = "strace -D -f -qq -e signal=none -o /dev/null --seccomp-bpf -e trace=fsync,fdatasync"
    wrap = f"{wrap} -e inject=fsync,fdatasync:{what}"
    host.start(wrap=wrap.split())
    yield
    if (code := host.process.poll()) is not None:
        raise Wrong(f"with {what} the daemon of {host.name} ended with {code}: {host.last_lines()}")
    host.stop()
    host.start()


@kind("process state", restarts=True, unkept=True, needs="strace")
def disk_slow(world, host, rng):
    yield from traced(host, f"delay_enter={rng.choice([200, 1000, 3000])}ms")


@kind("process state", restarts=True, unkept=True, needs="strace")
def disk_fails(world, host, rng):
    yield from traced(host, rng.choice(["error=EIO", "error=ENOSPC:when=2+"]))


# The rules. Unreadable ones leave the last good ones in force.


@kind("rules")
def rules_removed(world, host, rng):
    away = host.place / "rules.away"
    host.rules.rename(away)
    yield
    away.rename(host.rules)


@kind("rules")
def rules_half_written(world, host, rng):
    text = host.api.read_text()
    host.api.write_text(text[: rng.randrange(20, len(text) - 20)].rsplit(",", 1)[0])
    yield
    host.api.write_text(text)


@kind("rules")
def rules_written_in_drips(world, host, rng):
    text = host.api.read_text()
    with open(host.api, "w", buffering=1) as file:
        for line in text.splitlines(keepends=True):
            file.write(line)
            time.sleep(0.05)
    yield


@kind("rules")
def rules_swapped(world, host, rng):
    for _ in range(rng.randint(1, 5)):
        host.put_version(f"v{rng.randrange(1 << 30)}")
        time.sleep(rng.uniform(0, 0.3))
    yield
    data = os.readlink(host.rules / "..data")
    for path in host.rules.glob("..v*"):
        if path.name != data:
            shutil.rmtree(path)


@kind("rules")
def rules_invalid(world, host, rng):
    text = host.api.read_text()
    wrong = [
        "limits: 7\n",
        "- [",
        "domain: api\nlimits: [{name: x}]\n",
        "\0\1\2",
        "a: &a [*a]\n",
        "domain: api\n" + "[" * 9000,
    ]
    host.api.write_text(rng.choice(wrong))
    yield
    host.api.write_text(text)


@kind("rules")
def rules_bomb(world, host, rng):
    """Nested aliases, and a file of some megabytes."""
    other = host.rules / "bomb.yaml"
    lines = [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 12)]
    texts = ["domain: bomb\nx0: &x0 [1]\n" + "\n".join(lines), "domain: bomb\nlimits:\n" + "#" * (9 << 20)]
    other.write_text(rng.choice(texts))
    yield
    other.unlink()


@kind("rules")
def rules_many(world, host, rng):
    other = host.rules / "many.yaml"
    rules = "".join(
        f"  - {{name: r{i}, match: {{a: v{i}}}, key: [user], rate: {i + 1}/s}}\n"
        for i in range(rng.choice([300, 3000]))
    )
    other.write_text(f"domain: many\nlimits:\n{rules}")
    yield
    other.unlink()


@kind("rules")
def rules_are_a_pipe(world, host, rng):
    text = host.api.read_text()
    path = host.api
    path.unlink()
    os.mkfifo(path)
    yield
    path.unlink()
    path.write_text(text)


@kind("rules")
def rules_lead_out(world, host, rng):
    path, text = host.api, host.api.read_text()
    path.unlink()
    path.symlink_to(rng.choice(["/etc/passwd", "/dev/zero", "api.yaml", "/proc/self/environ"]))
    yield
    path.unlink()
    path.write_text(text)


@kind("rules", needs="root")
def rules_forbidden(world, host, rng):
    path = host.api
    path.chmod(0)
    yield
    path.chmod(0o644)


@kind("rules")
def rules_rewritten_all_the_time(world, host, rng):
    text, path = host.api.read_text(), host.api
    for number in range(60):
        path.write_text(f"{text}# {number}\n" if rng.random() < 0.7 else text[: number * 5])
        time.sleep(0.01)
    yield
    path.write_text(text)


@kind("rules", loose=EVERY)
def rules_gone(world, host, rng):
    """All files of the domain: it has no limits."""
    files = list(host.rules.glob("*.yaml"))
    links = {path: os.readlink(path) for path in files}
    for path in files:
        path.unlink()
    yield
    for path, target in links.items():
        path.symlink_to(target)


@kind("rules", loose=("steady",))
def numbers_changed(world, host, rng):
    text, path = host.api.read_text(), host.api
    path.write_text(text.replace("rate: 5/s, burst: 30", "rate: 50/s, burst: 300"))
    yield
    path.write_text(text)


@kind("rules")
def overrides_wrong(world, host, rng):
    """A table with invalid rows, with unknown callers, and with one row too many."""
    table = host.api.parent / "table.csv"
    rows = rng.choice(
        ["user,rate\n" + "".join(f"x{i},7/s\n" for i in range(2000)), "user,rate\nx1,7/s,,\n", "\0\0", "user\n", ""]
    )
    table.write_text(rows)
    text, path = host.api.read_text(), host.api
    path.write_text(text.replace("rate: 1000/s}", "rate: 1000/s, overrides_file: table.csv}"))
    yield
    path.write_text(text)
    table.unlink()


@kind("rules process state", restarts=True)
def started_with_bad_rules(world, host, rng):
    """The state directory has the last good rules."""
    text, path = host.api.read_text(), host.api
    path.write_text("domain: api\nlimits: nothing\n")
    host.stop()
    host.start()
    yield
    path.write_text(text)


@kind("rules process state", restarts=True)
def started_without_rules_directory(world, host, rng):
    away = host.place / "rules.away"
    host.rules.rename(away)
    host.stop()
    host.start()
    yield
    away.rename(host.rules)
