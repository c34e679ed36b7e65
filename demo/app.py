"""A small web application under the limits of config/rules. A real one needs only the last four lines."""

import json

import tidegate
from tidegate.wsgi import Middleware


def orders(environ, start_response):
    answer = {"orders": [], "for": environ.get("HTTP_X_USER")}
    # Notes of rules in shadow. The demonstration shows them to the caller; a real application can ignore them.
    answer["notes"] = [f"{kind} {rule}" for kind, rule in environ["tidegate.decision"].notes]
    body = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def user(environ):
    """Returns the caller. A real application takes it from its session or token, never from a header of the caller."""
    return environ.get("HTTP_X_USER")


application = Middleware(orders, tidegate.Client(pool="demo"), domain="api", user=user)
