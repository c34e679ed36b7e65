"""wsgi_app with X-Judged-Us, the time of the middleware before the application is entered.

ASK_FIRST=1 sends a request before a server forks, so that its children inherit a connection.
"""

import os
import time

from wsgi_app import answer, client
from wsgi_app import app as limited

if os.environ.get("ASK_FIRST") == "1":
    client.hit("api", {"user": "u0"})


def entered(environ, start_response):
    judged = time.monotonic() - environ["began"]

    def start(status, headers, *exc_info):
        return start_response(status, [*headers, ("X-Judged-Us", str(int(judged * 1e6)))], *exc_info)

    return answer(environ, start)


if limited is answer:
    limited = entered
else:
    limited.app = entered


def app(environ, start_response):
    environ["began"] = time.monotonic()
    return limited(environ, start_response)
