"""`tidegate top` in a terminal, which it restores, however it ends."""

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
import time

import pytest

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, burst: 5}\n"
PATIENT = 30.0
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b[^\[]")
PIECE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b[^\[]|.", re.DOTALL)


class Terminal:
    """A pseudo terminal that runs a command, and its screen."""

    def __init__(self, command, columns=100, lines=30):
        self.columns, self.lines, self.output, self.ended = columns, lines, b"", False
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        environment = {**os.environ, "TERM": "xterm-256color"}
        # A new session, with the terminal as its controlling one.
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with contextlib.suppress(OSError):
            while piece := os.read(self.master, 65_536):
                self.output += piece

    def press(self, keys):
        os.write(self.master, keys.encode())

    def resize(self, columns, lines):
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def screen(self):
        """Emulates a terminal as far as `top` needs it."""
        rows, row, column = {}, 0, 0
        for piece in PIECE.findall(self.output.decode(errors="replace")):
            if piece.startswith("\x1b["):
                numbers = [int(number or 1) for number in re.findall(r"\d+", piece)] or [1]
                if piece[-1] == "H":
                    row, column = numbers[0] - 1, (numbers[1:] or [1])[0] - 1
                elif piece[-1] == "J":
                    rows = {}
            elif piece == "\r":
                column = 0
            elif piece == "\n":
                row += 1
            elif piece.isprintable():
                rows.setdefault(row, {})[column] = piece
                column += 1
        line = lambda cells: "".join(cells.get(at, " ") for at in range(max(cells) + 1)).rstrip()  # noqa: E731
        return "\n".join(line(rows[row]) if row in rows else "" for row in range(max(rows, default=-1) + 1))

    def text(self):
        """Returns all drawn text without blanks, including text that was on the screen only for a second."""
        return "".join(ESCAPE.sub("", self.output.decode(errors="replace")).split())

    def until(self, what, holds):
        limit = time.monotonic() + PATIENT
        while not (found := holds()):
            assert time.monotonic() < limit, f"{what}: {self.screen()}\n{self.output[-2000:]!r}"
            time.sleep(0.02)
        return found

    def shows(self, words):
        self.until(f"it shows {words}", lambda: words in self.screen())

    def is_restored(self):
        """The previous screen, the cursor and the keys are restored."""
        self.until("it leaves its own screen", lambda: b"\x1b[?1049l" in self.output and b"\x1b[?25h" in self.output)
        assert self.output.rindex(b"\x1b[?1049l") > self.output.rindex(b"\x1b[?1049h")
        assert termios.tcgetattr(self.slave) == self.before

    def code(self):
        return self.process.wait(PATIENT)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENT)
        os.close(self.slave)
        self.reader.join(PATIENT)
        os.close(self.master)


@pytest.fixture
def top(daemon):
    """Starts it with a running daemon."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    admin = daemon.socket.removesuffix(".sock") + ".admin.sock"
    opened = []

    def start(**size):
        opened.append(Terminal([str(daemon.binary), "top", "--admin", admin], **size))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@contextlib.contextmanager
def traffic(make_client, daemon):
    """Sends requests continuously."""
    client, stopped = make_client(socket=daemon.socket), threading.Event()

    def ask():
        while not stopped.wait(0.01):
            client.hit("api", {"user": "u1"})

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield
    stopped.set()
    thread.join(PATIENT)


def test_draws_and_updates(top, daemon, make_client):
    terminal = top()
    terminal.until("its first words", lambda: "lookingforasecond;qendsit" in terminal.text())
    terminal.shows("0 allowed/s, 0 limited/s")
    assert termios.tcgetattr(terminal.slave) != terminal.before, "keys come one by one"
    with traffic(make_client, daemon):
        terminal.shows("api/per-user")
        terminal.until("refusals are shown", lambda: re.search(r" [1-9][\d.]* limited/s", terminal.screen()))
        # More requests are refused before the next look: the caller's sum changes.
        seen = terminal.screen()
        terminal.until("another second", lambda: terminal.screen() != seen)
    terminal.shows("0 allowed/s, 0 limited/s")
    terminal.press("q")
    assert terminal.code() == 0
    terminal.is_restored()


def test_keys_filter_sort_pause_and_explain(top, daemon, make_client):
    terminal = top(columns=60, lines=20)
    with traffic(make_client, daemon):
        terminal.shows("api/per-user")
        terminal.press("/nothinh\x7fg")
        terminal.shows("filter: nothing_")
        terminal.until("no rule is shown", lambda: "api/per-user" not in terminal.screen())
        terminal.press("\x1b")
        terminal.shows("api/per-user")
        terminal.press("ss")
        terminal.shows("s sort: refused")
        terminal.press("sss")
        terminal.shows("s sort: all")
        terminal.press("?")
        terminal.shows("show rules, callers and pools")
        terminal.press("x")
        terminal.shows("/ filter")
        terminal.press("p")
        terminal.shows("PAUSED")
        paused = terminal.screen()
    terminal.press("x")
    assert terminal.screen() == paused, "it keeps what it shows"
    terminal.press("p")
    terminal.shows("0 allowed/s, 0 limited/s")
    assert "PAUSED" not in terminal.screen()
    terminal.press("q")
    assert terminal.code() == 0
    terminal.is_restored()


def test_colours_unless_the_environment_refuses_them(top, daemon, make_client, monkeypatch):
    colour = re.compile(rb"\x1b\[[0-9;]*[34]8;5;|\x1b\[[0-9;]*3[1-7]m")
    with traffic(make_client, daemon):
        terminal = top()
        terminal.shows("api/per-user")
        terminal.until("refusals have a colour", lambda: colour.search(terminal.output))
        monkeypatch.setenv("NO_COLOR", "1")
        terminal = top()
        terminal.shows("api/per-user")
        terminal.until("refusals are shown", lambda: re.search(r" [1-9][\d.]* limited/s", terminal.screen()))
        assert not colour.search(terminal.output)


@pytest.mark.parametrize("key", ["q", "\x1b", "\x03"], ids=["q", "escape", "control-c"])
def test_a_key_ends_it(top, key):
    terminal = top()
    terminal.until("its first words", lambda: "qendsit" in terminal.text())
    terminal.press("xy")  # these are not
    terminal.shows("0 allowed")
    terminal.press(key)
    assert terminal.code() == 0
    terminal.is_restored()


def test_exits_with_a_message_when_the_daemon_exits(top, daemon):
    terminal = top()
    terminal.shows("0 allowed")
    daemon.stop()
    assert terminal.code() == 1
    terminal.is_restored()
    # On the previous screen, where it remains.
    terminal.until("it has the cause", lambda: b"is the daemon running" in terminal.output.split(b"\x1b[?1049l")[-1])


@pytest.mark.parametrize(("columns", "lines"), [(20, 5), (1, 1), (400, 2)])
def test_a_small_terminal_is_enough(top, daemon, make_client, columns, lines):
    terminal = top(columns=columns, lines=lines)
    with traffic(make_client, daemon):
        terminal.until("it is drawn", lambda: terminal.text().startswith("l"))
        terminal.until("it is drawn again", lambda: terminal.screen().startswith("t"))
        # Resized while it runs.
        for size in [(20, 5), (3, 2), (100, 30)]:
            terminal.resize(*size)
            terminal.press("x")
        terminal.shows("api/per-user")
        # crossterm forgets keys that arrive together with a change of the size, until the next key.
        seen = terminal.screen()
        terminal.until("another second", lambda: terminal.screen() != seen)
    terminal.press("q")
    assert terminal.code() == 0
    terminal.is_restored()
    assert b"panicked" not in terminal.output
