"""Type checkers accept right code of applications and reject wrong code: the lines of typed_usage.py."""

import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tidegate.http import Guard, GuardOptions

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "typed_usage.py"


def lines_with_mypy_errors(directory):
    command = [sys.executable, "-m", "mypy", "--strict", "--strict-equality", "--no-error-summary"]
    command += [f"--cache-dir={directory}", FILE.name]
    environment = {"MYPYPATH": str(HERE.parent / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(rf"^{FILE.name}:(\d+): error", done.stdout, re.M)}, done.stdout


def lines_with_pyright_errors(directory):
    places = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("pyright", path=places) or pytest.skip("pyright is missing: only mypy checks the types")
    settings = {"extraPaths": [str(HERE.parent / "src")], "typeCheckingMode": "standard"}
    settings |= {"reportUnnecessaryComparison": "error"}
    shutil.copy(FILE, directory)
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [program, "--project", str(directory), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    return lines, "\n".join(f"{one['range']['start']['line'] + 1}: {one['message']}" for one in found)


@pytest.mark.parametrize("check", [lines_with_mypy_errors, lines_with_pyright_errors])
def test_checkers_reject_the_wrong_lines_alone(check, tmp_path):
    wrong = {at for at, line in enumerate(FILE.read_text().splitlines(), 1) if line.endswith("  # wrong")}
    found, messages = check(tmp_path)
    assert len(wrong) > 40
    assert (sorted(wrong - found), sorted(found - wrong)) == ([], []), messages


def test_middlewares_take_the_options_of_guard():
    options = {name for name, one in inspect.signature(Guard).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert set(GuardOptions.__annotations__) == options - {"asynchronous"}
