"""A shop that works 50 ms on each request. The last four lines limit it."""

import time

import tidegate
from tidegate.wsgi import Middleware


def shop(environ, start_response):
    time.sleep(0.05)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\n"]


def user(environ):
    """Returns the caller. A real application takes it from its session or token, never from a header of the caller."""
    return environ.get("HTTP_X_USER")


# The proxy that sets X-Request-Start. In the demonstration the callers set it themselves.
PROXIES = ["127.0.0.1/32"]
application = Middleware(shop, tidegate.Client(pool="shop"), domain="shop", user=user, trusted_proxies=PROXIES)
