"""Acts of `make demo` succeed, and one whose programs are missing says so and is skipped."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOWHERE = "/nonexistent/release/tidegate"


def act(name, tidegate, **environment):
    """Runs one act of the demonstration; returns its output."""
    path = os.pathsep.join([str(ROOT / "demo"), str(ROOT / "clients/python/src")])
    command = [sys.executable, "-c", f"import sys, {name}; sys.exit({name}.main(sys.argv[1]))", str(tidegate)]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("name", "program"), [("fleet", "redis-server"), ("together", "node")])
def test_act_without_its_program_is_skipped(name, program, tmp_path):
    assert re.search(rf"^{program} is missing .*: this act is skipped$", act(name, NOWHERE, PATH=str(tmp_path)), re.M)


def test_act_without_nginx_or_a_built_client_is_skipped(tmp_path):
    (tmp_path / "node").touch(mode=0o755)
    output = act("together", NOWHERE, PATH=str(tmp_path))
    built = (ROOT / "clients/node/dist").is_dir()
    assert ("nginx is missing" if built else "the client for Node.js is not built") in output and "skipped" in output


@pytest.mark.nightly
# Not `overload`, which holds only on a machine that works off 80 requests of 50 ms in a second.
@pytest.mark.parametrize("name", ["fleet", "together"])
def test_act_succeeds(name, daemon):
    output = act(name, daemon.binary)
    print(output)
    assert "skipped" not in output and re.search(r"^ok: ", output, re.M)
