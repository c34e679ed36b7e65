"""The application that is driven while the daemon fails, as WSGI for gunicorn.

    gunicorn --chdir tests/clients/apps/python --bind 127.0.0.1:$PORT wsgi_app:app

TIDEGATE_SOCKET says where the daemon is; TIDEGATE_DISABLE=1 is the same application without it.
"""

import time
import urllib.parse

import tidegate
from tidegate.wsgi import Middleware


def answer(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/boom":
        raise RuntimeError("boom")
    if path == "/slow":
        given = urllib.parse.parse_qs(environ.get("QUERY_STRING", ""))
        time.sleep(int(given.get("ms", ["0"])[0]) / 1000)
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"chunk %d\n" % i for i in range(3))
    body = f"path {path}\n".encode("latin-1")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


client = tidegate.Client()
app = Middleware(answer, client, domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
