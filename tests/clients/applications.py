"""The same small application in every language: its command, and the reason if it cannot run here.

Each derives GET /item/N from its path alone, answers /boom with 500, /slow?ms=N late, /stream in three parts, and sets
X-Judged-Us to the time before the application was entered; without it, the time includes HTTP.
WITHOUT_LIMITER=1 removes the middleware, TIDEGATE_DISABLE=1 keeps it without requests to the daemon.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from exchange import Line
from servers import OWN_GROUP, end, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
APPS = ROOT / "tests/clients/apps"
THREADS = 4  # in each process
KEPT = 60  # seconds that an idle connection stays open, on slow machines too


@dataclasses.dataclass(frozen=True)
class Application:
    """`command(port, workers)`: one process, or forked workers of a process that had loaded the application."""

    name: str
    command: Callable[[int, int], list[str]]
    forks: bool
    needs: Callable[[], str]  # the reason if it cannot run here; empty if it can
    nightly: bool = False

    def __str__(self) -> str:
        return self.name

    @contextlib.contextmanager
    def serving(self, path, workers=1, **environment):
        """Serves the application, whose client uses the socket at `path`; yields the port."""
        port = free_port()
        environment = {
            "TIDEGATE_SOCKET": str(path),
            "PORT": str(port),
            "WORKERS": str(workers if workers > 1 else 0),
            "THREADS": str(THREADS),
            "PRELOAD": "1",
            "ASK_FIRST": "1",
            "PYTHONPATH": str(ROOT / "clients/python/src"),
        } | environment
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                self.command(port, workers),
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **OWN_GROUP,
            )
            try:
                until = time.monotonic() + 30
                while not answers(port):
                    if process.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        raise AssertionError(f"{self.name} does not answer: {log.read()[-2000:]}")
                    time.sleep(0.05)
                yield port
            except BaseException:
                log.seek(0)
                print(f"log of {self.name}:", *[line for line in log if line.startswith("tidegate: ")][-20:], sep="\n")
                raise
            finally:
                end(process)


def answers(port):
    with contextlib.suppress(OSError, EOFError, AssertionError):
        return ask(port, "/ready", "nobody")[0] == 200
    return False


def ask(port, path, user):
    """Returns status, headers (lower case), body, over a new connection, so that no response can be another's."""
    with contextlib.closing(Line(port)) as line:
        answer = line.ask(path, user, close=True)
        return answer.status, answer.headers, answer.body


def _gunicorn(port, workers):
    options = ["--preload", "--workers", str(workers), "--worker-class", "gthread", "--threads", str(THREADS)]
    options += ["--keep-alive", str(KEPT)]
    place = ["--chdir", str(APPS / "python"), "--bind", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "gunicorn", *options, *place, "judged_wsgi:app"]


def _uvicorn(port, workers):
    options = ["--app-dir", str(APPS / "python"), "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    options += ["--timeout-keep-alive", str(KEPT)]
    return [sys.executable, "-m", "uvicorn", *options, "judged_asgi:app"]


def _puma(port, workers):
    return ["puma", "--config", str(APPS / "ruby/puma.rb"), str(APPS / "ruby/judged.ru")]


def _go(port, workers):
    return [built()]


@functools.cache
def built():
    """The Go application, built once."""
    place = tempfile.mkdtemp(prefix="tg-go-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    subprocess.run(["go", "build", "-o", f"{place}/application", "."], cwd=APPS / "go", check=True)
    return f"{place}/application"


def _express(port, workers):
    return ["node", str(APPS / "node/app.mjs")]


def _missing(*paths, tools=(), modules=()):
    def why():
        missing = [path for path in paths if not (ROOT / path).exists()]
        missing += [tool for tool in tools if shutil.which(tool) is None]
        missing += [module for module in modules if importlib.util.find_spec(module) is None]
        return f"missing: {', '.join(missing)}" if missing else ""

    return why


PYTHON, RUBY, GO, NODE = (f"tests/clients/apps/{language}" for language in ("python", "ruby", "go", "node"))
BUILT = ("clients/node/dist/cjs/express.js", "clients/node/node_modules/express")  # make test-node
APPLICATIONS = [
    Application("gunicorn", _gunicorn, True, _missing(f"{PYTHON}/wsgi_app.py", modules=["gunicorn"])),
    Application("uvicorn", _uvicorn, False, _missing(f"{PYTHON}/asgi_app.py", modules=["uvicorn"])),
    Application("puma", _puma, True, _missing(f"{RUBY}/config.ru", tools=["ruby", "puma"])),
    Application("net-http", _go, False, _missing(f"{GO}/go.mod", tools=["go"])),
    Application("express", _express, False, _missing(f"{NODE}/app.mjs", *BUILT, tools=["node"]), nightly=True),
]
