"""The package as a whole: small, typed, without dependencies, quick to import."""

import ast
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src/tidegate"


def test_the_stub_is_one_small_file():
    for file in SOURCE.glob("*.py"):
        lines = file.read_text().splitlines()
        assert len(lines) <= 500 and max(map(len, lines)) <= 120, file


# What imports a framework is imported only by who has it.
FRAMEWORKS = {"celery.py": "celery", "django.py": "django asgiref", "fastapi.py": "fastapi", "flask.py": "flask"}
FRAMEWORKS |= {"testing.py": "pytest"}


def test_nothing_but_the_standard_library():
    for file in SOURCE.glob("*.py"):
        allowed = sys.stdlib_module_names | set(FRAMEWORKS.get(file.name, "").split())
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, (file, name)


def test_asking_loads_the_stub_alone():
    code = "import tidegate, sys; tidegate.Client('/nowhere').hit('api')"
    code += "; print(*sorted(name for name in sys.modules if name.startswith(('tidegate.', 'asyncio'))))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); {code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"tidegate.gunicorn_slots", "tidegate.trouble"}


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import limiter
client = limiter.Client(sys.argv[2], timeout=2)
decisions = [client.hit("api", {"user": "u1"}) for _ in range(3)]
assert [bool(decision) for decision in decisions] == [True, True, False]
assert [(decision.degraded, decision.rule) for decision in decisions] == [(False, "per-user")] * 3
assert decisions[2].headers()["Retry-After"] and client.check()
with client.limit("other") as decision:
    assert decision.lease
try:
    with client.limit("api", {"user": "u1"}):
        raise AssertionError
except limiter.Denied as denied:
    assert denied.decision.rule == "per-user" and "per-user" in str(denied)
"""


def test_the_stub_alone_copied_under_another_name_works(tmp_path, daemon):
    shutil.copy(SOURCE / "__init__.py", tmp_path / "limiter.py")
    rules = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1/min, burst: 2}]\n"
    (daemon.rules / "api.yaml").write_text(rules)
    daemon.start()
    subprocess.run([sys.executable, "-I", "-c", PROGRAM, str(tmp_path), daemon.socket], check=True)


def test_copied_into_a_program_it_works(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "vendored", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import vendored, sys; d = vendored.Client('/nowhere').hit('api'); assert d.degraded and not d.headers()"
    code += "; assert not {'typing_extensions', 'vendored.wsgi', 'asyncio', 'wsgiref'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"], check=True
    )


@pytest.mark.parametrize(
    "command",
    [("mypy", "--strict"), ("ruff", "check")],
    ids=["mypy", "ruff"],
)
def test_types_and_style(command):
    pytest.importorskip(command[0])
    where = SOURCE.parents[1]
    done = subprocess.run(
        [sys.executable, "-m", *command, "src"], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
