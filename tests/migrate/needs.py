"""Skips a test, with the reason, if a program, a Python module or a Ruby library is missing."""

import functools
import importlib.util
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def ruby_has(library):
    return subprocess.run(["ruby", "-r", library, "-e", ""], capture_output=True).returncode == 0


def need(programs=(), modules=(), libraries=()):
    missing = [program for program in programs if shutil.which(program) is None]
    missing += [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        missing = [name for name in libraries if not ruby_has(name)]
    if missing:
        pytest.skip(f"missing: {', '.join(missing)} (make setup)")
