"""The application that is driven while the daemon fails, as WSGI for gunicorn.

    gunicorn --chdir tests/clients/apps/python --bind 127.0.0.1:$PORT wsgi_app:app

TIDEGATE_SOCKET is the daemon's socket; WITHOUT_LIMITER=1 is the application alone, for comparison.
"""

import os
import time
import urllib.parse

import tidegate
from tidegate.wsgi import Middleware


def parts(pause):
    for i in range(3):
        yield b"chunk %d\n" % i
        time.sleep(pause)


def answer(environ, start_response):
    path = environ["PATH_INFO"]
    given = urllib.parse.parse_qs(environ.get("QUERY_STRING", ""))
    pause = int(given.get("ms", ["0"])[0]) / 1000
    if path == "/boom":
        raise RuntimeError("boom")
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return parts(pause)
    time.sleep(pause)
    body = f"path {path}\n".encode("latin-1")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


client = tidegate.Client()
app = answer
if os.environ.get("WITHOUT_LIMITER") != "1":
    app = Middleware(answer, client, domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
