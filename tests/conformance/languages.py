"""Each client and its adapter: the command, the reason if it cannot run here, and the features of the language.

An adapter reads commands, JSON objects, one a line, and answers each with one line:

| command `do` | fields | answer |
|---|---|---|
| `make` | `client` (its name, also in other commands), `socket`, `timeout_ms`?, `fallback`?, `enabled`? | `{}` |
| `hit`, `acquire`, `peek` | `domain`, `attributes`, `cost`?, `priority`?, `idem`?, `on_failure`? | a decision |
| `crowd` | those of `hit`, `callers` | `all`: decisions of concurrent hits of the users u0, u1, … |
| `busy` | those of `hit`, `busy_ms` | a decision; the event loop is busy before the write and before the read |
| `fork` | those of `hit` | the decision of a forked child |
| `work` | `domain`, `attributes`, `fails` | runs a function under a lease, which may raise: `ran`, `raised`? |
| `release` | `outcome`: `ok`, `error`, `dropped` | ends the last decision's lease: `{}` |
| `stats` | | `missed`, `refused`, `breaker_open`, `connections` |
| `log` | | `lines` since the last `log` |

A decision is `allowed`, `verdict`, `status`, `degraded`, `reason`, `rule`, `limit`, `remaining`, `lease` (null if
absent), `retry_us` (null: never), `wait_us`, `took_us` (the time of the call); of a call that raised, `raised` and
`took_us`. The attribute value `{"invalid": true}` is text that is not valid Unicode, as the language can hold it;
`{"object": true}` is an object without a text of its own.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTERS = ROOT / "tests/conformance/adapters"
JAVA = ROOT / "clients/java/core/target/classes"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


@dataclasses.dataclass(frozen=True)
class Language:
    """`crowd`: concurrent callers, 0 without concurrency.

    Features: `dynamic`: any value may be a cost. `pools`: a client has several connections. `loop`: callers share an
    event loop. `forks`: a process may fork. `objects`: an attribute may be an object without a text.
    """

    name: str
    command: Callable[[], list[str]]
    needs: Callable[[], str]  # the reason if it cannot run here; empty if it can
    crowd: int = 0
    features: frozenset[str] = frozenset()
    nightly: bool = False

    def __str__(self) -> str:
        return self.name


def _python(file):
    return lambda: [sys.executable, str(ADAPTERS / file)]


@functools.cache
def _built(make, *command):
    """Returns a temporary directory with the results of a compiler, which runs in the adapter's directory."""
    place = tempfile.mkdtemp(prefix=f"tg-{make}-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    sources = sorted(map(str, ADAPTERS.glob("*.java"))) if make == "java" else []
    directory = ADAPTERS / make if (ADAPTERS / make).is_dir() else ADAPTERS
    subprocess.run([*(part.format(place) for part in command), *sources], cwd=directory, check=True)
    return place


def _go():
    return [_built("go", "go", "build", "-o", "{}/adapter", ".") + "/adapter"]


def _java():
    place = _built("java", "javac", "-d", "{}", "-cp", str(JAVA))
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JAVA}:{place}", "Adapter"]


def _rust(*arguments):
    return lambda: [str(TARGET / "debug/examples/conformance"), *arguments]


def _needs(*tools, paths=()):
    def why():
        missing = [tool for tool in tools if shutil.which(tool) is None]
        missing += [str(path) for path in paths if not (ROOT / path).exists()]
        return f"missing: {', '.join(missing)}" if missing else ""

    return why


RUST = _needs(paths=[TARGET / "debug/examples/conformance"])  # make test-rust
DYNAMIC, POOLS, LOOP, FORKS, OBJECTS = "dynamic", "pools", "loop", "forks", frozenset({"objects"})
LANGUAGES = [
    Language("python", _python("python_sync.py"), _needs(), 100, OBJECTS | {DYNAMIC, POOLS, FORKS}),
    Language("python-async", _python("python_async.py"), _needs(), 2_000, OBJECTS | {DYNAMIC, LOOP, FORKS}),
    Language(
        "ruby",
        lambda: ["ruby", str(ADAPTERS / "ruby.rb")],
        _needs("ruby"),
        100,
        OBJECTS | {DYNAMIC, POOLS, FORKS},
    ),
    Language("go", _go, _needs("go"), 2_000, OBJECTS | {POOLS}),
    Language(
        "node",
        lambda: ["node", str(ADAPTERS / "node.mjs")],
        _needs("node", paths=["clients/node/dist/esm/index.js"]),  # make test-node
        2_000,
        OBJECTS | {DYNAMIC, LOOP},
        nightly=True,
    ),
    Language("java", _java, _needs("java", "javac", paths=[JAVA]), 2_000, OBJECTS, nightly=True),  # make test-java
    Language(
        "php",
        lambda: ["php", str(ADAPTERS / "php.php")],
        _needs("php"),
        features=OBJECTS | {DYNAMIC, FORKS},
        nightly=True,
    ),
    Language("rust", _rust(), RUST, 2_000, frozenset({LOOP}), nightly=True),
    Language("rust-one-thread", _rust("current_thread"), RUST, 2_000, frozenset({LOOP}), nightly=True),
]
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "clients/python/src")}
CLEARED = ("TIDEGATE_SOCKET", "TIDEGATE_TIMEOUT_MS", "TIDEGATE_DISABLE", "XDG_RUNTIME_DIR")


def environment():
    return {name: value for name, value in os.environ.items() if name not in CLEARED} | ENVIRONMENT
