"""The package as a whole: small, typed, without dependencies, quick to import."""

import ast
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src/tidegate"


def test_the_stub_is_small():
    assert len((SOURCE / "__init__.py").read_text().splitlines()) <= 500
    for file in SOURCE.glob("*.py"):
        assert len(file.read_text().splitlines()) <= 500, file


def test_nothing_but_the_standard_library():
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names | {"typing_extensions"}, (file, name)


def test_copied_into_a_program_it_works(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "vendored", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import vendored, sys; d = vendored.Client('/nowhere').hit('api'); assert d.degraded and not d.headers()"
    code += "; assert not {'typing_extensions', 'vendored.wsgi', 'asyncio', 'wsgiref'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"], check=True
    )


@pytest.mark.parametrize(
    "command",
    [("mypy", "--strict"), ("ruff", "check"), ("ruff", "format", "--check")],
    ids=["mypy", "ruff", "format"],
)
def test_types_and_style(command):
    pytest.importorskip(command[0])
    where = SOURCE.parents[1]
    done = subprocess.run(
        [sys.executable, "-m", *command, "src"], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
