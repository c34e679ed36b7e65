"""Some seeds of the roulette, and tests that its oracle detects errors. Alone: `make test-roulette`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = {101: 15, 102: 15}  # seconds of each


def play(*options: str) -> str:
    done = subprocess.run([sys.executable, HERE, *options], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_costs_more_than_stated(seed):
    length = str(SEEDS[seed])
    shrink = ["--shrink", os.environ.get("SHRINK", "0")]
    output = play("--seed", str(seed), "--seconds", length, "--faults", length, *shrink)
    assert "1 of 1 runs passed" in output


FINDINGS = ["too much: steady", "too much: window", "too much at once: ", "not denied: ", "false refusal: ", "fleet: "]


def test_oracle_reports_other_rules():
    output = play("--seconds", "12", "--only", "", "--lie")
    missing = [text for text in FINDINGS if text not in output]
    assert not missing, output


def test_oracle_reports_unexpected_effects():
    """Faults that the oracle believes to have no effect."""
    kinds = ["--kinds", "state_lost,stopped,rules_gone", "--strict", "--shrink", "0"]
    output = play("--seed", "7", "--seconds", "18", "--faults", "18", *kinds)
    missing = [text for text in ("too much: steady", "unjudged: ", "no limit: ") if text not in output]
    assert not missing, output
