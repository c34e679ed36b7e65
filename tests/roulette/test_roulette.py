"""A few seeds of the roulette, and whether its oracle notices what is wrong. As a user of its own: `make roulette`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = {101: 20, 102: 20, 103: 20}  # seconds of each


def play(*options: str) -> str:
    done = subprocess.run([sys.executable, HERE, *options], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_costs_more_than_stated(seed):
    said = play("--seed", str(seed), "--seconds", str(SEEDS[seed]), "--faults", str(SEEDS[seed]), "--shrink", os.environ.get("SHRINK", "0"))
    assert "1 of 1 runs passed" in said


TOLD = ["too much: steady", "too much: window", "too much at once: ", "not denied: ", "false refusal: ", "fleet: "]


def test_oracle_notices_other_rules():
    said = play("--seconds", "15", "--only", "", "--lie")
    missing = [told for told in TOLD if told not in said]
    assert not missing, said


@pytest.mark.parametrize(("name", "told"), [("killed", "too much: steady"), ("stopped", "unjudged: "), ("rules_gone", "no limit: ")])
def test_oracle_notices_what_is_not_allowed_for(name, told):
    """The same faults, of which the oracle is told that they cost nothing."""
    assert told in play("--seed", "7", "--seconds", "20", "--faults", "20", "--kinds", name, "--shrink", "0", "--strict")
