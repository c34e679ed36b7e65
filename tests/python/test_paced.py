"""A caller that paces itself, with a real application and a real limit."""

import http.client
import time
import types

from tidegate.pace import Pace

from servers import gunicorn

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 5/s, burst: 10}\n"
APP = """
import tidegate
from tidegate.wsgi import Middleware

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"well"]

app = Middleware(app, tidegate.Client(), domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
"""


def test_paced_calls_are_rarely_refused_and_always_served(daemon, directory):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    with gunicorn(daemon, directory, APP, "--threads", "2") as port:
        statuses = []

        def send(user):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/", headers={"X-User": user})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            statuses.append(answer.status)
            return types.SimpleNamespace(status_code=answer.status, headers=dict(answer.getheaders()))

        started, pace = time.monotonic(), Pace()
        assert [pace.call(lambda: send("paced")).status_code for _ in range(20)] == [200] * 20
        assert time.monotonic() - started >= (20 - 10) / 5 - 0.1  # at most as fast as the limit
        assert statuses.count(429) <= 5
        statuses.clear()
        for _ in range(50):
            send("greedy")
        assert statuses.count(429) > 5  # without pacing
