"""All parts of a run: hosts with a daemon each, Redis and its replica, clients, and the twin."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/roulette"
sys.path[:0] = [str(ROOT / "clients/python/src"), str(ROOT / "tests/python")]

import tidegate  # noqa: E402
from servers import OWN_GROUP, free_port  # noqa: E402

IS_ROOT = os.geteuid() == 0
# Parallel runs need separate users: the kernel counts the threads of a user over all of them.
UID = int(os.environ.get("ROULETTE_UID", "64000"))
UIDS = {"daemon": UID + 1, "python": UID + 11, "ruby": UID + 12, "go": UID + 13, "stranger": UID + 20}
TIMEOUT = 0.2  # seconds: the deadline of clients, long so that a busy machine does not degrade decisions
PATIENCE = 40  # seconds, against endless waits
COPIES = 1.0  # seconds from one copy of the tables to the next
LANGUAGES = ("python", "ruby", "go")

RATE, BURST, WINDOW, WINDOW_S, MAX, FLEET_RATE, FLEET_BURST = 5, 30, 8, 5, 3, 5, 60
RULES = f"""domain: api
deny: [{{name: nobody, match: {{kind: denied}}}}]
limits:
  - {{name: steady, match: {{kind: steady}}, key: [user], rate: {RATE}/s, burst: {BURST}}}
  - {{name: window, match: {{kind: window}}, key: [user], algorithm: sliding_log, rate: {WINDOW}/{WINDOW_S}s}}
  - {{name: calm, match: {{kind: calm}}, key: [user], rate: 1000/s}}
  - {{name: fleet, match: {{kind: fleet}}, key: [user], rate: {FLEET_RATE}/s, burst: {FLEET_BURST}, scope: fleet}}
concurrency:
  - {{name: work, match: {{kind: work}}, key: [user], max: {MAX}, expires: 30s}}
"""
STRANGERS = """domain: others
limits:
  - {name: any, key: [user], rate: 10/s, burst: 5}
concurrency:
  - {name: held, match: {hold: "1"}, key: [user], max: 100000}
"""


QUIET = logging.getLogger("roulette")
QUIET.disabled = True


class Wrong(Exception):
    """A finding during a run."""


@functools.cache
def python() -> str:
    """A Python that any user may run."""
    for path in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(PermissionError):
            if subprocess.run([path, "-c", "import socket"], cwd="/", **run_as("stranger")).returncode == 0:
                return path
    return sys.executable


def run_as(who: str) -> dict:
    """Returns options of Popen that run a process under its own user, if this is root."""
    return {"user": UIDS[who], "group": UIDS[who], "extra_groups": []} if IS_ROOT else {}


def give(path: pathlib.Path, who: str = "daemon") -> None:
    if IS_ROOT:
        os.chown(path, UIDS[who], UIDS[who], follow_symlinks=False)


def await_true(true, what: str, patience: float = PATIENCE):
    until = time.monotonic() + patience
    while not (found := true()):
        if time.monotonic() > until:
            raise Wrong(f"never: {what}")
        time.sleep(0.01)
    return found


def metric(page: str, name: str) -> float:
    values = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(values)


class Host:
    """A daemon with its files. `exits` has exit codes of unexpected exits."""

    def __init__(
        self, name: str, binary: pathlib.Path, place: pathlib.Path, redis_port: int, is_faked: bool, rules: str
    ) -> None:
        self.name, self.binary, self.place, self.is_faked, self.text = name, binary, place, is_faked, rules
        self.socket, self.admin, self.state = place / "s", place / "admin", place / "state"
        self.rules, self.password = place / "rules", place / "password"
        self.lines, self.exits, self.wraps = list[tuple[float, str]](), list[int](), list[str]()
        self.process: subprocess.Popen | None = None
        self.hears = threading.Event()  # cleared: the log has no reader
        self.hears.set()
        self.pages: list[tuple[float, int]] = []  # resident bytes over time
        place.mkdir()
        place.chmod(0o755)
        self.write_rules()
        self.state.mkdir(mode=0o700)
        if IS_ROOT:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "none", self.state], check=True)
        self.password.write_text("good")
        (place / "secret").write_bytes(b"7" * 32)
        (place / "secret").chmod(0o600)
        (place / "offset").write_text("+0\n")
        (place / "settings.yaml").write_text(
            f'socket: {{path: s, mode: "0666"}}\nadmin: {{socket: admin}}\nrules: rules\nstate: state\nthreads: 2\n'
            f'redis: {{url: "redis://127.0.0.1:{redis_port}", password_file: password, fleet_secret_files: [secret]}}\n'
        )
        for path in (place, self.state, self.password, place / "secret", place / "settings.yaml"):
            give(path)

    def write_rules(self) -> None:
        """Like a mounted config map: links into a directory that is itself linked."""
        self.rules.mkdir()
        self.put_version("v1")
        for name in ("api.yaml", "others.yaml"):
            (self.rules / name).symlink_to(f"..data/{name}")

    def put_version(self, version: str) -> None:
        """Swaps in another directory with the same rules."""
        new = self.rules / f"..{version}"
        new.mkdir(exist_ok=True)
        (new / "api.yaml").write_text(f"# {version}\n{self.text}")
        (new / "others.yaml").write_text(STRANGERS)
        (self.rules / "..new").symlink_to(new.name)
        (self.rules / "..new").rename(self.rules / "..data")

    @property
    def api(self) -> pathlib.Path:
        return (self.rules / "..data").resolve() / "api.yaml"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self, log: int | None = None, wrap: list[str] | None = None) -> subprocess.Popen:
        """A process of the daemon. `log`: its standard error, default: this host's pipe."""
        command = [str(self.binary), "serve", "--config", str(self.place / "settings.yaml")]
        command += ["--write-state-every", str(int(COPIES * 1000))]
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        if self.is_faked:
            environment |= faked(self.place / "offset")
        reader = None
        if log is None:
            reader, log = os.pipe()
        try:
            process = subprocess.Popen(
                [*(wrap or self.wraps), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.place,
                **OWN_GROUP,
                **run_as("daemon"),
            )
        finally:
            if reader is not None:
                os.close(log)
        if reader is not None:
            threading.Thread(target=self._collect, args=(reader,), daemon=True).start()
        return process

    def _collect(self, reader: int) -> None:
        rest = b""
        with os.fdopen(reader, "rb", 0) as pipe:
            while data := pipe.read(65_536):
                *lines, rest = (rest + data).split(b"\n")
                self.lines += [(time.monotonic(), line.decode(errors="replace")) for line in lines]
                self.hears.wait()

    def start(self, log: int | None = None, wrap: list[str] | None = None) -> None:
        """Waits until it answers."""
        self.process = self.spawn(log, wrap)
        self.await_answer()

    def await_answer(self) -> None:
        def answers() -> bool:
            if (code := self.process.poll()) is not None:
                raise Wrong(f"the daemon of {self.name} ended with {code} at its start: {self.last_lines()}")
            probe = tidegate.Client(str(self.socket), timeout=1.0, logger=QUIET)
            with contextlib.closing(probe):
                return probe.check()

        await_true(answers, f"the daemon of {self.name} answers: {self.last_lines()}")

    def last_lines(self) -> list[str]:
        loud = [line for _, line in self.lines[-200:-6] if " ERROR " in line]
        return [*loud[-4:], *(line for _, line in self.lines[-6:])]

    def stop(self, how: int = signal.SIGTERM, expected: tuple[int, ...] = (0,)) -> None:
        """Waits for its exit, and returns findings on it."""
        process, began = self.process, time.monotonic()
        if process.poll() is None:
            process.send_signal(how)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Wrong(
                f"the daemon of {self.name} goes on {PATIENCE} s after signal {how}: {self.last_lines()}"
            ) from None
        if code not in expected:
            raise Wrong(
                f"the daemon of {self.name} ended with {code} after signal {how}, not {expected}: {self.last_lines()}"
            )
        self.ended_after = time.monotonic() - began

    def kill(self) -> None:
        self.stop(signal.SIGKILL, (-signal.SIGKILL, *self._is_dead()))

    def _is_dead(self) -> tuple[int, ...]:
        return (self.process.returncode,) if self.process.poll() is not None else ()

    def ask(self, path: str, body: dict | None = None) -> str:
        """Returns the response of the admin socket; empty without one."""
        with contextlib.suppress(OSError, http.client.HTTPException), socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(3)
            raw.connect(str(self.admin))
            connection = http.client.HTTPConnection("localhost", timeout=3)
            connection.sock = raw
            text = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, text, {"Content-Type": "application/json"})
            return connection.getresponse().read().decode()
        return ""

    def resident(self) -> int:
        """Bytes of private memory: a debug build also maps 100 MB of file."""
        with contextlib.suppress(OSError, AttributeError):
            for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        return 0


@functools.cache
def fake_library() -> str:
    if shutil.which("faketime") is None:
        return ""
    output = subprocess.run(["faketime", "-f", "+0", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True)
    return output.stdout.strip()


def faked(offset: pathlib.Path) -> dict[str, str]:
    """Sets the wall clock of a process from a file, and no other clock of it."""
    names = {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    return names | {"LD_PRELOAD": fake_library(), "FAKETIME_TIMESTAMP_FILE": str(offset)}


class Redis:
    """Two servers of which the second replicates the first, until they switch roles; and the paths to them."""

    def __init__(self, place: pathlib.Path, hosts: list[str]) -> None:
        self.place, self.servers, self.first = place, dict[int, subprocess.Popen](), 0
        self.ports, self.fronts = [free_port(), free_port()], {host: free_port() for host in hosts}
        place.mkdir()
        for number in (0, 1):
            self.start(number)
        fronts = [f"{host}={port}" for host, port in self.fronts.items()]
        command = [sys.executable, str(HERE / "proxy.py"), str(self.socket(0)), *fronts]
        self.proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.proxy.stdout.readline()

    def socket(self, number: int) -> pathlib.Path:
        return self.place / f"{number}.sock"

    def start(self, number: int) -> None:
        place = self.place / str(number)
        place.mkdir(exist_ok=True)
        words = f"--port {self.ports[number]} --unixsocket {self.socket(number)} --save '' --appendonly no".split()
        words = ["" if word == "''" else word for word in words]
        words += ["--requirepass", "good", "--masterauth", "good", "--enable-debug-command", "yes"]
        if number != self.first:
            words += ["--replicaof", "127.0.0.1", str(self.ports[self.first])]
        log = open(place / "log", "a")  # noqa: SIM115
        self.servers[number] = subprocess.Popen(["redis-server", *words], cwd=place, stdout=log, stderr=log)
        log.close()
        await_true(lambda: b"PONG" in self.say(number, "PING"), "Redis answers")

    def say(self, number: int, *words: str, password: str = "good") -> bytes:
        """Returns the reply of a server; empty without one."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket(number)))
            for command in (["AUTH", password], list(words)):
                parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
                connection.sendall(f"*{len(command)}\r\n{parts}".encode())
                answer = connection.recv(65_536)
            return answer
        return b""

    def front(self, *words: object) -> None:
        """Sends a command to the proxy."""
        line = " ".join(map(str, words))
        self.proxy.stdin.write(f"{line}\n")
        if self.proxy.stdout.readline().strip() != line:
            raise Wrong("the proxy ended")

    def kill(self, number: int) -> None:
        self.servers[number].kill()
        self.servers[number].wait()

    def fail_over(self) -> int:
        """Makes the other server the primary; returns the former."""
        former, self.first = self.first, 1 - self.first
        self.say(self.first, "REPLICAOF", "NO", "ONE")
        self.front("target", self.socket(self.first))
        return former


class World:
    """All parts. `hosts` and `clients` by name."""

    def __init__(self, place: pathlib.Path, binary: pathlib.Path, seed: int, pause_ms: float, rules: str) -> None:
        self.place, self.pause_ms, self.rng = place, pause_ms, random.Random(seed)
        self.calls, self.clients = place / "calls", dict[str, subprocess.Popen]()
        self.outs = dict[str, pathlib.Path]()
        self.helpers = list[subprocess.Popen]()
        place.chmod(0o755)
        self.calls.mkdir()
        self.calls.chmod(0o777)
        self.redis = Redis(place / "redis", ["a", "b"])
        faked = {"b"} if fake_library() else set()
        self.hosts = {
            name: Host(name, binary, place / name, port, name in faked, rules)
            for name, port in self.redis.fronts.items()
        }
        command = [sys.executable, str(HERE / "twin.py"), str(place / "late")]
        self.twin = subprocess.Popen(command, stdin=subprocess.PIPE)
        for host in self.hosts.values():
            host.start()
        self.languages = [language for language in LANGUAGES if commands()[language]]
        for host in self.hosts:
            for language in self.languages:
                self.start_client(f"{language}-{host}")

    def start_client(self, name: str, path: pathlib.Path | None = None) -> None:
        """`path`: instead of the socket of its host."""
        language, host = name.split("-")[:2]
        count = sum(each.name.startswith(name) for each in self.calls.iterdir())
        out = self.outs[name] = self.calls / f"{name}-{count}"
        out.touch()
        give(out, language)
        environment = os.environ | {"TIDEGATE_TIMEOUT_MS": str(TIMEOUT * 1000), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"PYTHONPATH": str(ROOT / "clients/python/src")}
        with open(self.place / f"{name}.err", "a") as errors:
            self.clients[name] = subprocess.Popen(
                [*commands()[language], name, str(path or self.hosts[host].socket), str(out), str(self.pause_ms)],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                **run_as(language),
            )

    def signal_client(self, name: str, signal_number: int) -> None:
        """After its first request it handles signals."""
        await_true(lambda: self.outs[name].stat().st_size or self.clients[name].poll() is not None, f"{name} asks")
        self.clients[name].send_signal(signal_number)

    def end_client(self, name: str) -> None:
        self.signal_client(name, signal.SIGTERM)
        if (code := self.clients[name].wait(PATIENCE)) != 0:
            raise Wrong(f"the client {name} ended with {code} after TERM")

    def stranger(self, *words: object) -> subprocess.Popen:
        """A process of another user."""
        environment = os.environ | {"PYTHONPATH": str(ROOT / "clients/python/src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [python(), str(HERE / "hostile.py"), *map(str, words)]
        process = subprocess.Popen(command, env=environment, cwd="/", stdin=subprocess.DEVNULL, **run_as("stranger"))
        self.helpers.append(process)
        return process

    def end_helper(self, process: subprocess.Popen) -> None:
        self.helpers.remove(process)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Ends all remaining processes."""
        processes = [*self.clients.values(), *self.helpers, self.twin, self.redis.proxy, *self.redis.servers.values()]
        for process in [*processes, *(host.process for host in self.hosts.values() if host.process)]:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for host in self.hosts.values():
            host.hears.set()
            while IS_ROOT and os.path.ismount(host.state):
                subprocess.run(["umount", "--lazy", host.state], check=True)


@functools.cache
def commands() -> dict[str, list[str]]:
    """Returns the command of a client in each language; empty if the language is missing."""
    found = {"python": [python(), str(HERE / "clients/client.py")], "ruby": [], "go": []}
    if ruby := shutil.which("ruby"):
        found["ruby"] = [ruby, str(HERE / "clients/client.rb")]
    if shutil.which("go"):
        built = ROOT / "target/go/roulette"
        built.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another run may start the program at this moment.
        with tempfile.TemporaryDirectory(dir=built.parent) as place:
            command = ["go", "build", "-buildvcs=false", "-o", f"{place}/roulette", "."]
            subprocess.run(command, cwd=HERE / "clients/go", check=True)
            os.replace(f"{place}/roulette", built)
        found["go"] = [str(built)]
    return found
