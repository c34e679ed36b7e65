"""The package as a whole: small, typed, without dependencies, quick to import."""

import ast
import pathlib
import shutil
import subprocess
import sys

import tidegate

STUB_LINES_MAX = 1_216
SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src/tidegate"


STUB = ("__init__.py", "protocol.py", "connection.py")


def test_the_stub_is_three_files():
    lines = {file: file.read_text().splitlines() for file in SOURCE.glob("*.py")}
    assert all(len(text) <= 400 or file.name in STUB for file, text in lines.items())
    assert max(len(line) for text in lines.values() for line in text) <= 120
    assert sum(len(text) for file, text in lines.items() if file.name in STUB) <= STUB_LINES_MAX


def test_the_stub_is_formatted():
    command = [sys.executable, "-m", "ruff", "format", "--diff", *(SOURCE / name for name in STUB)]
    done = subprocess.run(command, cwd=SOURCE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


CHECKERS = {"typing_extensions"}  # type checkers bring it along; imported only under TYPE_CHECKING
# Files that import a framework, which are imported only with that framework.
FRAMEWORKS = {"celery.py": "celery", "django.py": "django asgiref", "fastapi.py": "fastapi starlette"}
FRAMEWORKS |= {"flask.py": "flask", "testing.py": "pytest"}


def test_nothing_but_the_standard_library():
    for file in SOURCE.glob("*.py"):
        allowed = sys.stdlib_module_names | set(FRAMEWORKS.get(file.name, "").split()) | CHECKERS
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, (file, name)


def test_a_request_loads_only_the_stub_and_small_files():
    code = "import tidegate, sys; tidegate.Client('/nowhere').hit('api')"
    code += "; print(*sorted(name for name in sys.modules if name.startswith(('tidegate.', 'asyncio'))))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); {code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    stub, used = {"connection", "protocol"}, {*tidegate.BESIDE, "signals"}
    assert {f"tidegate.{name}" for name in stub} <= set(loaded) <= {f"tidegate.{name}" for name in stub | used}


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import limiter
client = limiter.Client(sys.argv[2], timeout=2)
decisions = [client.hit("api", {"user": "u1"}) for _ in range(3)]
assert [bool(decision) for decision in decisions] == [True, True, False]
assert [(decision.degraded, decision.rule) for decision in decisions] == [(False, "per-user")] * 3
assert decisions[1].headers() == {"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0"}
fields, again = decisions[2].headers(), decisions[2].headers().pop("Retry-After")
assert 50 <= int(again) <= 60 and decisions[2].message.startswith("limit: per-user (retry_after: ")
assert fields == decisions[1].headers() | {"Retry-After": again, "X-Ratelimit-Retry-After": again}
hidden = client.hit("hidden") and client.hit("hidden")
assert set(hidden.headers()) == {"Retry-After"}
with client.limit("other", {"user": "u1"}, cost=3, queued=0.01) as decision:
    assert decision.lease and decision.renew()
    assert client.peek("other").remaining == 2
assert client.charge("api", {"user": "u2"}, {"requests": 1}) and client.check()
try:
    with client.limit("api", {"user": "u1"}):
        raise AssertionError
except limiter.Denied as denied:
    assert denied.decision.rule == "per-user" and "per-user" in str(denied)
for missing, use in {
    "decorators.py": lambda: client.limited("api"), "aio.py": lambda: limiter.AsyncClient,
}.items():
    try:
        use()
    except ImportError as error:
        assert missing in str(error) and "__init__.py" in str(error), error
    else:
        raise AssertionError(missing)
assert not client.hit("other", {f"k{i}": "x" * 1024 for i in range(16)}).degraded
try:
    limiter.Client(fallback="20/s")
except ImportError as error:
    assert "fallback.py" in str(error)
else:
    raise AssertionError("fallback.py")
assert client._info["connection"] == 1  # all of it on one
if (pid := os.fork()) == 0:
    os._exit(client.hit("other").degraded or client.stats()["connections"] != 1)
assert os.waitpid(pid, 0)[1] == 0
absent = limiter.Client(sys.argv[2] + "-absent").hit("api")
assert absent.allowed and absent.reason == "unreachable" and absent.headers() == {}
refused = limiter.Client(sys.argv[2] + "-absent").hit("api", on_failure="refuse")
assert (refused.status, refused.headers()["Retry-After"]) == (503, "1")
"""
RULES = {
    "api": "limits: [{name: per-user, key: [user], rate: 1/min, burst: 2}]",
    "hidden": "limits: [{name: secret, key: [], rate: 1/min, advertise: false}]",
    "other": "concurrency: [{name: at-once, key: [], max: 3, expires: 1h}]",
}


def test_the_stub_copied_alone_limits(tmp_path, daemon):
    """As a package of another name with no other files."""
    (tmp_path / "limiter").mkdir()
    for name in STUB:
        shutil.copy(SOURCE / name, tmp_path / "limiter")
    for domain, rules in RULES.items():
        (daemon.rules / f"{domain}.yaml").write_text(f"domain: {domain}\n{rules}\n")
    daemon.start()
    command = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path), daemon.socket]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "start it with `tidegate serve`" in done.stderr  # logged


def test_works_copied_into_a_program(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "vendored", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import vendored, sys; d = vendored.Client('/nowhere').hit('api'); assert d.degraded and not d.headers()"
    code += "; assert not {'typing_extensions', 'vendored.wsgi', 'asyncio', 'wsgiref'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"], check=True
    )
