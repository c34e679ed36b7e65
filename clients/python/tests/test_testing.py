"""The client for tests of applications, and its fixture."""

import asyncio

import pytest

import tidegate
import tidegate.asgi
import tidegate.wsgi
from tidegate.testing import Fake, fake_tidegate  # noqa: F401


def app(environ, start_response):
    start_response("200 OK", [])
    return [b"well"]


def call(client, **options):
    response = []
    body = tidegate.wsgi.Middleware(app, client, "api", user=lambda environ: "u1", **options)(
        {"REQUEST_METHOD": "GET", "PATH_INFO": "/x"}, lambda status, headers: response.extend((status, dict(headers)))
    )
    list(body)
    if hasattr(body, "close"):
        body.close()
    return response


def test_allows_and_records_requests(fake_tidegate):  # noqa: F811
    assert call(fake_tidegate)[0] == "200 OK"
    [asked] = fake_tidegate.asked
    assert (asked.call, asked.domain, asked.cost, asked.priority) == ("acquire", "api", 1, None)
    assert asked.attributes == {"method": "GET", "path": "/x", "user": "u1"}
    fake_tidegate.assert_released("ok")
    assert fake_tidegate.charge("api", {"user": "u1"}, {"tokens": 5}) and fake_tidegate.charges[0].cost == {"tokens": 5}
    assert fake_tidegate.hit("api").lease is None and fake_tidegate.peek("api") and fake_tidegate.check()


@pytest.mark.parametrize(
    ("verdict", "status", "retry"),
    [("limit", "429 Too Many Requests", "7"), ("shed", "503 Service Unavailable", "7"), ("deny", "403 Forbidden", "")],
)
def test_forced(fake_tidegate, verdict, status, retry):  # noqa: F811
    fake_tidegate.force("per-user", verdict, retry_after=7)
    got, fields = call(fake_tidegate)
    assert got == status and fields.get("Retry-After", "") == retry
    assert fake_tidegate.hit("api").rule == "per-user"
    fake_tidegate.clear()
    assert call(fake_tidegate)[0] == "200 OK"


def test_forced_for_some(fake_tidegate):  # noqa: F811
    fake_tidegate.force("per-user", retry_after=None, when=lambda asked: asked.attributes.get("user") == "greedy")
    assert fake_tidegate.hit("api", {"user": "u1"}) and not fake_tidegate.hit("api", {"user": "greedy"})
    fake_tidegate.force("queue", "wait", retry_after=0.01)
    with fake_tidegate.limit("api", {"user": "greedy"}) as decision:
        assert decision.wait == 0.01


def test_an_unreleased_lease_fails_the_test():
    fake = Fake()
    decision = fake.acquire("export", {"org": "o1"})
    with pytest.raises(AssertionError, match=r"not released.*export"):
        fake.assert_released()
    decision.release("error")
    fake.assert_released()
    with pytest.raises(AssertionError, match="otherwise"):
        fake.assert_released("ok")


def test_as_without_a_daemon(fake_tidegate):  # noqa: F811
    fake_tidegate.fail()
    assert call(fake_tidegate)[0] == "200 OK" and call(fake_tidegate, on_failure="refuse")[0].startswith("503")
    assert fake_tidegate.stats()["missed"] == {"unreachable": 2}


def test_the_fake_refuses_invalid_requests(fake_tidegate):  # noqa: F811
    assert fake_tidegate.hit("a/b").reason == "invalid" and fake_tidegate.asked == []


def test_asynchronous(fake_tidegate):  # noqa: F811
    ac = fake_tidegate.asynchronous

    @ac.limited("export", lambda org: {"org": org})
    async def report(org):
        return org

    async def main():
        async with ac.limit("api") as decision:
            assert await decision.renew() and len(fake_tidegate.leases) == 1
        assert await report("o1") == "o1" and fake_tidegate.asked[-1].attributes == {"org": "o1"}
        fake_tidegate.force("per-user")
        with pytest.raises(tidegate.Denied):
            await report("o1")
        sent = []

        async def send(message):
            sent.append(message)

        async def plain(scope, receive, send):
            raise AssertionError

        await tidegate.asgi.Middleware(plain, ac)({"type": "http", "path": "/"}, None, send)
        return sent[0]["status"]

    assert asyncio.run(main()) == 429


PLUGIN = """
pytest_plugins = ["tidegate.testing"]

def test_keeps(fake_tidegate):
    fake_tidegate.acquire("export")

def test_releases(fake_tidegate):
    fake_tidegate.acquire("export").release()
"""


def test_the_fixture_in_a_suite_of_its_own(tmp_path, monkeypatch):
    import os
    import pathlib
    import subprocess
    import sys

    (tmp_path / "test_it.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    source = str(pathlib.Path(tidegate.__file__).resolve().parents[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True, check=False
    )
    assert "2 passed, 1 error" in done.stdout and "not released" in done.stdout
