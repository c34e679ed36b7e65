"""HTTP responses of all decisions, byte for byte as in every other language: tests/vectors/answers.json."""

import json
import pathlib
import subprocess
import sys

import pytest

from tidegate import Decision
from tidegate.protocol import decode
from tidegate.wsgi import Middleware

VECTORS = pathlib.Path(__file__).resolve().parents[3] / "tests/vectors"
ANSWERS = json.loads((VECTORS / "answers.json").read_text())
OWN = [("Content-Type", "text/plain")]


class Decided:
    """A client that always gets this decision."""

    def __init__(self, answer):
        self.answer = answer

    def acquire(self, domain, attributes, cost, priority, queued, on_failure):
        return decided(self.answer)

    def _log(self, text, once=False):
        """Ignores that these requests have no address."""


def decided(answer):
    if answer["reason"]:
        return Decision([0] if answer["status"] == 200 else [2, *5 * [None], 1_000_000], reason=answer["reason"])
    decision = Decision(decode(bytes.fromhex(answer["decision"])[4:])[2:])
    decision.domain = None if decision.allowed else answer["domain"]
    return decision


@pytest.mark.parametrize("answer", ANSWERS, ids=[answer["name"] for answer in ANSWERS])
def test_an_answer(answer, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    started = []

    def application(environ, start_response):
        start_response(f"{answer['status']} As It Is", list(OWN))
        return [b"its own"]

    limited = Middleware(application, Decided(answer), headers=answer["style"])
    body = b"".join(limited({"REQUEST_METHOD": "GET"}, lambda status, headers: started.append((status, headers))))
    [(status, headers)] = started
    own = [] if answer["body"] else OWN
    assert int(status.split()[0]) == answer["status"]
    assert headers == own + [tuple(field) for field in answer["headers"]]
    assert body.decode() == (answer["body"] or "its own")
    assert decided(answer).message == answer["message"]


def test_answers_are_generated():
    done = subprocess.run(
        [sys.executable, VECTORS / "answers.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
