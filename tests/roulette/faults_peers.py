"""Faults of clients and operators: hostile clients of another user, storms of commands, clients that exit or stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time

import front
import hostile
from kinds import EVERY, kind
from world import Wrong, await_true


def peer(mode):
    """A kind for each hostile behaviour. It may not affect others.

    But a client waits if the backlog is full of connections that hostile peers opened.
    """

    def play(world, host, rng):
        strangers = [world.stranger(host.socket, mode, rng.randrange(1 << 30)) for _ in range(rng.choice([1, 1, 2]))]
        yield
        for stranger in strangers:
            world.end_helper(stranger)

    play.__name__ = f"peer_{mode}"
    return kind("peer", needs="root", blind=mode == "connecting")(play)


for _mode in hostile.MODES:
    peer(_mode)


# Clients.


def client_of(world, host, rng, languages=("python", "ruby", "go")):
    names = [name for name in world.clients if name.endswith(f"-{host.name}") and name.split("-")[0] in languages]
    return rng.choice(names)


@kind("client")
def client_killed(world, host, rng):
    name = client_of(world, host, rng)
    world.clients[name].kill()
    world.clients[name].wait()
    yield
    world.start_client(name)


@kind("client")
def client_ended(world, host, rng):
    name = client_of(world, host, rng)
    world.end_client(name)
    yield
    world.start_client(name)


@kind("client")
def client_stopped(world, host, rng):
    name = client_of(world, host, rng)
    world.clients[name].send_signal(signal.SIGSTOP)
    yield
    world.clients[name].send_signal(signal.SIGCONT)


@kind("client", seconds=(0.2, 2.0))
def client_forked(world, host, rng):
    name = client_of(world, host, rng, ("python", "ruby"))
    world.signal_client(name, signal.SIGUSR1)
    yield


@kind("client", seconds=(0.2, 1.0))
def client_forked_and_killed(world, host, rng):
    """The child has inherited connections."""
    name = client_of(world, host, rng, ("python", "ruby"))
    world.signal_client(name, signal.SIGUSR1)
    time.sleep(0.1)
    world.clients[name].kill()
    world.clients[name].wait()
    yield
    world.start_client(name)


@kind("client", seconds=(0.2, 1.0))
def clients_killed_together(world, host, rng):
    names = [name for name in world.clients if name.endswith(f"-{host.name}")]
    for name in names:
        world.clients[name].kill()
    yield
    for name in names:
        world.clients[name].wait()
        world.start_client(name)


def misled(fault):
    """A kind for each way in which a process at the daemon's path may corrupt the replies of one client."""

    def play(world, host, rng):
        path, language = host.place / "front", rng.choice(world.languages)
        with front.spinning(path, host.socket) as turn:
            path.chmod(0o666)
            turn(fault)
            name = f"{language}-{host.name}-misled"
            world.start_client(name, path)
            yield
            world.end_client(name)
            del world.clients[name]
        path.unlink(missing_ok=True)

    play.__name__ = f"client_misled_{fault}"
    return kind("front")(play)


for _fault in (*front.REPLIES, "seldom", "full"):
    misled(_fault)


# Operators.


@contextlib.contextmanager
def again_and_again(act, threads=1):
    stopped = threading.Event()

    def run():
        while not stopped.wait(0.001):
            with contextlib.suppress(OSError):
                act()

    running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    yield
    stopped.set()
    for thread in running:
        thread.join(20)


@kind("process storm")
def hup_storm(world, host, rng):
    with again_and_again(lambda: host.process.send_signal(signal.SIGHUP)):
        yield


@kind("process storm")
def usr1_storm(world, host, rng):
    with again_and_again(lambda: host.process.send_signal(signal.SIGUSR1)):
        yield


@kind("storm")
def scrape_storm(world, host, rng):
    paths = ["/metrics", "/status", "/switches", "/rules", "/", "/readyz", "/healthz"]
    with again_and_again(lambda: host.ask(rng.choice(paths)), threads=2):
        yield


@kind("storm")
def reload_storm(world, host, rng):
    with again_and_again(lambda: host.ask("/reload", {}), threads=2):
        yield


@kind("storm switch")
def switch_storm(world, host, rng):
    """For a rule that refuses no request."""

    def act():
        host.ask("/switch", {"rule": "others/any", "mode": rng.choice(["shadow", "disabled", "enforce"])})

    with again_and_again(act, threads=2):
        yield
    host.ask("/switch", {"rule": "others/any", "clear": True})


@kind("storm block")
def block_storm(world, host, rng):
    def act():
        body = {"rule": "steady", "key": {"user": f"nobody{rng.randrange(20)}"}}
        host.ask(*rng.choice([("/block", body | {"for_s": 1}), ("/unblock", body), ("/reset", body)]))

    with again_and_again(act, threads=2):
        yield


@kind("storm switch block")
def wrong_verbs(world, host, rng):
    """Requests that the admin socket must refuse."""
    bodies = [
        {},
        {"rule": "nothing", "mode": "shadow"},
        {"all": 7},
        {"rule": "steady", "key": {"user": "s0"}, "for_s": -1},
        {"rule": [[]]},
    ]
    with again_and_again(lambda: host.ask(rng.choice(["/switch", "/block", "/reset", "/record"]), rng.choice(bodies))):
        yield


@kind("storm")
def admin_unread(world, host, rng):
    """Connections to the admin socket that send little or nothing, and read nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            with contextlib.suppress(OSError):
                line = stack.enter_context(socket.socket(socket.AF_UNIX))
                line.settimeout(0.2)
                line.connect(str(host.admin))
                line.sendall(rng.choice([b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50]))
        yield


@kind("storm", seconds=(0.1, 0.5))
def commands(world, host, rng):
    """Commands of operators; none may panic."""
    for words in (
        ["status"],
        ["doctor"],
        ["fleet"],
        ["switch"],
        ["healthcheck"],
        ["peek", "api", "kind=steady", "user=s0"],
    ):
        where = [] if words[0] == "peek" else ["--admin", str(host.admin)]
        command = [str(host.binary), *words, *where, "--socket", str(host.socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=host.place)
        if done.returncode not in (0, 1, 2, 75) or "panicked" in done.stderr:
            raise Wrong(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
    yield


@kind("switch block process admin", loses=("steady",), seconds=(0.0, 0.2))
def key_reset(world, host, rng):
    host.ask("/reset", {"rule": "steady", "key": {"user": rng.choice(["s0", "s1"])}})
    yield


@kind("switch process admin", loose=("steady",))
def rule_switched(world, host, rng):
    host.ask("/switch", {"rule": "steady", "mode": rng.choice(["shadow", "disabled"])})
    yield
    cleared(host, {"rule": "steady", "clear": True})


@kind("switch process admin", loose=EVERY)
def everything_switched(world, host, rng):
    host.ask("/switch", {"all": True, "mode": rng.choice(["shadow", "disabled"])})
    yield
    cleared(host, {"all": True, "clear": True})


def cleared(host, body):
    await_true(lambda: '"said"' in host.ask("/switch", body), f"{body} of {host.name}")


@kind("switch", loose=EVERY)
def disable_file(world, host, rng):
    (host.place / "disable").touch()
    yield
    (host.place / "disable").unlink()


@kind("switch! process! admin!", loose=("window",))
def rule_switched_in_the_fleet(world, host, rng):
    """As long as Redis is reachable, else the switch expires."""
    body, until = {"rule": "window", "fleet": True}, time.monotonic() + 8
    host.ask("/switch", body | {"mode": "shadow", "for_s": 3})
    yield
    if '"said"' not in host.ask("/switch", body | {"clear": True}):
        time.sleep(max(0, until - time.monotonic()))
