"""What the tests of docs/migrate share: where the clients are, and a reader who works through a page."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest

# The daemon, and how a server ends, are those of the other suites.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("clients/python/src", "clients/python/tests", "tests/python")]

from daemons import daemon, directory, make_client  # noqa: E402, F401
from reader import Reader  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: needs more time, or programs that scripts/setup does not install")


def ruby_has(library):
    return subprocess.run(["ruby", "-r", library, "-e", ""], capture_output=True).returncode == 0


def need(programs=(), modules=(), libraries=()):
    """Skips, with a word, where a program, a module of Python's or a library of Ruby's is missing."""
    gone = [program for program in programs if shutil.which(program) is None]
    gone += [module for module in modules if importlib.util.find_spec(module) is None]
    if not gone:
        gone = [name for name in libraries if not ruby_has(name)]
    if gone:
        pytest.skip(f"missing: {', '.join(gone)} (scripts/setup test)")


@pytest.fixture
def reader(daemon, directory):  # noqa: F811
    with Reader(directory, daemon.binary) as made:
        yield made
