"""The tested binary (TIDEGATE_BIN), its package, and helpers to run programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# Programs that scripts/setup builds.
os.environ["PATH"] += f":{os.environ.get('CARGO_TARGET_DIR') or PROJECT / 'target'}/tools/bin"
BINARY = Path(os.environ.get("TIDEGATE_BIN") or PROJECT / "target/debug/tidegate")


def need(*programs: str) -> None:
    """Skips, with a message, if a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")


def run(*words: object, **options: object) -> str:
    """Runs a program to its end, and returns its output; fails with the output if it failed."""
    ended = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           **options)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{words[0]} ended with {ended.returncode}:\n{ended.stdout}"
    return str(ended.stdout)


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@dataclass(frozen=True)
class Package:
    """A .deb, and its files below `root`."""

    path: Path
    root: Path
    control: Path
