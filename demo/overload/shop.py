"""A shop that works 50 ms on each request. What asks the daemon is the four lines at the end."""

import time

import tidegate
from tidegate.wsgi import Middleware


def shop(environ, start_response):
    time.sleep(0.05)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\n"]


def user(environ):
    """Who calls. A real application takes this from its session or token, never from what a caller may make up."""
    return environ.get("HTTP_X_USER")


# The proxy in front, which says when a request came. Here the callers are their own.
PROXIES = ["127.0.0.1/32"]
application = Middleware(shop, tidegate.Client(pool="shop"), domain="shop", user=user, trusted_proxies=PROXIES)
