"""Code of applications. Type checkers accept each line but those that end with `# wrong`; see test_types.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import flask
from fastapi import Depends, FastAPI
from typing_extensions import assert_type

import tidegate
import tidegate.aio
import tidegate.asgi
import tidegate.celery
import tidegate.fastapi
import tidegate.flask
import tidegate.observe
import tidegate.testing
import tidegate.wsgi
from tidegate.fallback import Fallback

client = tidegate.Client(on_decision=lambda decision, seconds: print(decision.rule, seconds))
ac = tidegate.AsyncClient("/run/tidegate.sock", timeout=0.05, on_decision=tidegate.observe.statsd())
assert_type(ac, tidegate.aio.AsyncClient)
fake = tidegate.testing.Fake(on_decision=tidegate.observe.prometheus())

# -- the client
tidegate.Client(timeout="20ms")  # wrong
tidegate.Client(time_out=0.02)  # wrong
tidegate.Client(fallback={"per-user": 20})  # wrong
tidegate.Client(on_decision=lambda decision: None)  # wrong
tidegate.AsyncClient(timeout="20ms")  # wrong
tidegate.AsyncClient(socket_path="/run/tidegate.sock")  # wrong
tidegate.AsyncClint()  # wrong

# -- calls
names: dict[str, str] = {"user": "u1"}
several: list[dict[str, str]] = [names, names]
client.hit("api", names, 2, priority="batch", idem=b"1", queued=0.5, max_wait=1, on_failure="refuse")
client.acquire("api", several, {"tokens": 5}, fallback=Fallback("20/s"))
client.peek("api", ({"org": 1}, {"user": None}))
client.hit("api", [("user", "u1"), ("org", 3)])
client.hit("api", {1: "u1"})  # wrong
client.hit("api", "u1")  # wrong
client.hit("api", cost=1.5)  # wrong
client.hit("api", cost={"tokens": "5"})  # wrong
client.hit("api", on_failure="deny")  # wrong
client.hit("api", on_failur="refuse")  # wrong
client.hit("api", fallback="20/s")  # wrong
client.acquire("api", queued="5s")  # wrong
client.acquire(None)  # wrong
client.charge("api", names, "5")  # wrong
client.signal("event_loop", None)  # wrong
with client.limit("api", names, on_failure="maybe"):  # wrong
    pass

# -- decisions
decision = client.acquire("api", names)
assert_type(decision.allowed, bool)
assert_type(decision.retry_after, float | None)
decision.release()
decision.release("dropped")
decision.release("failed")  # wrong
decision.release(True)  # wrong
print(decision.retryafter)  # wrong
print(decision.rule.upper())  # wrong
if decision.verdict == "limited":  # wrong
    pass


# -- asyncio
async def ask() -> None:
    granted = await ac.acquire("api", names, on_failure="refuse")
    assert_type(await granted.renew(), bool)
    await ac.hit("api", on_failure="deny")  # wrong
    print(ac.hit("api").allowed)  # wrong
    async with ac.limit("api", names, cost="1"):  # wrong
        pass
    with ac.limit("api"):  # wrong
        pass


# -- decorators
@client.limited("llm", lambda prompt: {"model": "large"}, charge=lambda answer: {"tokens": len(answer)})
def answer(prompt: str) -> str:
    return prompt


assert_type(answer("a"), str)
answer(1)  # wrong
client.limited("llm", charge=5)  # wrong
client.limited("llm", on_failure="deny")  # wrong
client.limited("llm", attribute={"model": "large"})  # wrong


@ac.limited("llm", charge=lambda answer: len(answer))
def answer_soon(prompt: str) -> str:
    return prompt


@ac.limited("llm")
async def answer_later(prompt: str) -> str:
    return prompt


@ac.limited("llm")
def tokens(prompt: str) -> Iterator[str]:
    yield prompt


@ac.limited("llm")
async def tokens_later(prompt: str) -> AsyncIterator[str]:
    yield prompt


async def use() -> None:
    assert_type(await answer_soon("a"), str)
    assert_type(await answer_later("a"), str)
    assert_type([token async for token in tokens("a")], list[str])
    assert_type([token async for token in tokens_later("a")], list[str])
    await answer_later(1)  # wrong
    answer_soon("a").upper()  # wrong


# -- middlewares


def caller(request: Any) -> str | None:
    return None


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    return []


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    return None


tidegate.wsgi.Middleware(application, client, "web", user=caller, on_failure=[("/login", "refuse"), ("/", "allow")])
tidegate.wsgi.Middleware(application, client, on_failure=lambda environ: "refuse", headers="draft")
tidegate.wsgi.Middleware(application, ac)  # wrong
tidegate.wsgi.Middleware(application, client, usr=caller)  # wrong
tidegate.wsgi.Middleware(application, client, on_failure="deny")  # wrong
tidegate.wsgi.Middleware(application, client, on_failure=[("/", "deny")])  # wrong
tidegate.wsgi.Middleware(application, client, headers="all")  # wrong
tidegate.wsgi.Middleware(application, client, outcome=lambda status: "fine")  # wrong
tidegate.asgi.Middleware(asgi, ac, user=caller, trusted_proxies=["10.0.0.0/8"], fallback="20/s")
tidegate.asgi.Middleware(asgi, client)  # wrong
tidegate.asgi.Middleware(asgi, ac, trusted_proxies=1.5)  # wrong

app = FastAPI(dependencies=[Depends(tidegate.fastapi.limit(ac, "web", user=caller))])
app.add_middleware(tidegate.asgi.Middleware, client=ac, domain="web", user=caller)
tidegate.fastapi.limit(ac, user="u1")  # wrong

site = flask.Flask("site")
tidegate.flask.protect(site, client, user=caller, outcome=lambda status: "error" if status > 499 else None)
tidegate.flask.protect(site, client, exempt=True)  # wrong
tidegate.flask.limit(client, instrument=lambda decision: None)  # wrong
tidegate.celery.limited(client, "jobs", lambda org: {"org": org}, on_failure="refuse")
tidegate.celery.limited(client, "jobs", on_failure="deny")  # wrong

# -- tests of applications
fake.force("per-user", "shed", retry_after=1)
fake.force("per-user", "limited")  # wrong
fake.assert_released("done")  # wrong
