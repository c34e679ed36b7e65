"""The application that is driven while the daemon fails, as ASGI for uvicorn.

    uvicorn --app-dir tests/clients/apps/python --port $PORT asgi_app:app

TIDEGATE_SOCKET is the daemon's socket; WITHOUT_LIMITER=1 is the application alone, for comparison.
"""

import asyncio
import os
import urllib.parse

import tidegate
from tidegate.asgi import Middleware


async def answer(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    path = scope["path"]
    if path == "/boom":
        raise RuntimeError("boom")
    given = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
    pause = int(given.get("ms", ["0"])[0]) / 1000
    if path == "/slow":
        await asyncio.sleep(pause)
    chunks = [f"path {path}\n".encode()]
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(chunks[0])).encode())]
    if path == "/stream":
        chunks, headers = [b"chunk %d\n" % i for i in range(3)], headers[:1]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for i, chunk in enumerate(chunks):
        await send({"type": "http.response.body", "body": chunk, "more_body": i + 1 < len(chunks)})
        if path == "/stream" and pause:
            await asyncio.sleep(pause)


def user(scope):
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-user"), None)


client = tidegate.AsyncClient()
app = answer if os.environ.get("WITHOUT_LIMITER") == "1" else Middleware(answer, client, domain="api", user=user)
