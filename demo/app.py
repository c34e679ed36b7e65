"""A small web application under the limits of config/rules: what a real one needs is the four lines at the end."""

import json

import tidegate
from tidegate.wsgi import Middleware


def orders(environ, start_response):
    answer = {"orders": [], "for": environ.get("HTTP_X_USER")}
    # What rules say that refuse no request yet. Here it is shown to the caller; a real application need not look at it.
    answer["notes"] = [f"{kind} {rule}" for kind, rule in environ["tidegate.decision"].notes]
    body = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def user(environ):
    """Who calls. A real application takes this from its session or token, never from what a caller may make up."""
    return environ.get("HTTP_X_USER")


application = Middleware(orders, tidegate.Client(pool="demo"), domain="api", user=user)
