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
    said = play("--seed", str(seed), "--seconds", length, "--faults", length, "--shrink", os.environ.get("SHRINK", "0"))
    assert "1 of 1 runs passed" in said


TOLD = ["too much: steady", "too much: window", "too much at once: ", "not denied: ", "false refusal: ", "fleet: "]


def test_oracle_reports_other_rules():
    said = play("--seconds", "12", "--only", "", "--lie")
    missing = [told for told in TOLD if told not in said]
    assert not missing, said


def test_oracle_reports_unexpected_effects():
    """Faults that the oracle believes to have no effect."""
    kinds = ["--kinds", "state_lost,stopped,rules_gone", "--strict", "--shrink", "0"]
    said = play("--seed", "7", "--seconds", "18", "--faults", "18", *kinds)
    missing = [told for told in ("too much: steady", "unjudged: ", "no limit: ") if told not in said]
    assert not missing, said
