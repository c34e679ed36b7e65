"""No response reaches a wrong process or request, and a failing daemon gets one probe per interval."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import signal
import threading
import time

import pytest

from applications import APPLICATIONS, ask
from crowd import free
from rules import BURST, CONCURRENCY, RULES, USERS, limit_of
from servers import wait_until

CHILDREN = 4
REQUESTS = int(os.environ.get("FORKED_REQUESTS", "125"))  # for each child; `make nightly`: 10 000
ANSWERS_MAX = 6 * CHILDREN * REQUESTS  # until each child has had a request
FLIPS = int(os.environ.get("FLIPS", "50"))  # stops of the daemon; `make nightly`: 5 000
SILENCE = 2.5  # seconds: four probes
FAILURES = 3  # after which a client's breaker opens
PAUSES = [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 100]  # seconds, at least: half of 0.1 s, which is doubled up to 2 s


@pytest.mark.parametrize("application", [one for one in APPLICATIONS if one.forks], ids=str)
def test_no_reply_reaches_another_process(application, played, directory):
    """Children of a process that had sent a request before, each with threads; every reply derives from its request."""
    granted, numbers = [], itertools.count(1)

    def reply(connection, message):
        if message[0] not in (1, 3):
            return None
        number = user_of(message)
        if message[0] == 1:
            granted.append(number)
        lease = number if message[0] == 1 else None
        return [1, message[1], 0, "own", BURST + number, BURST, number, 0, 0, lease, None, None, None]

    def one(number):
        answer = ask(port, f"/item/{number}", f"u{number}")
        return number, answer[0], limit_of(answer[1]), answer[2] == comparison(number)

    def hellos(field):
        return {message[3][field] for message in list(played.seen) if message[0] == 0}

    played.script = reply
    with application.serving(played.path, workers=CHILDREN, TIDEGATE_TIMEOUT_MS="2000") as port:
        template = ask(port, "/item/0", "u0")[2]

        def comparison(number):
            return template.replace(b"/item/0", b"/item/%d" % number)

        with concurrent.futures.ThreadPoolExecutor(2 * CHILDREN) as crowd:
            answers = list(crowd.map(one, itertools.islice(numbers, CHILDREN * REQUESTS)))
            while len(hellos("pid")) <= CHILDREN and len(answers) < ANSWERS_MAX:  # the kernel may pass over a child
                answers += crowd.map(one, itertools.islice(numbers, REQUESTS))
        wrong = [answer for answer in answers if answer[1:] != (200, BURST + answer[0], True)]
        assert wrong == []
        released = sorted(lease for lease, _ in played.releases(len(granted)))
    assert released == sorted(granted) and len(granted) > len(answers)
    print(f"\n{application}: {len(answers)} requests, {len(hellos('pid'))} processes")
    assert len(hellos("session")) == len(hellos("pid")) > CHILDREN  # and their parent


def user_of(message):
    """Returns the number of the user, which the message has."""
    (attributes,) = message[3]
    users = dict(zip(attributes[::2], attributes[1::2])).get("user", "u0")
    return int(users.removeprefix("u")) if users.startswith("u") and users[1:].isdigit() else 0


@pytest.mark.parametrize("application", APPLICATIONS, ids=str)
def test_no_late_verdict_reaches_another_request(application, daemon, directory):
    """Stopped for longer than the deadline and continued, the daemon replies to requests that no caller waits for."""
    (daemon.rules / "api.yaml").write_text(RULES + CONCURRENCY)
    daemon.start()
    with application.serving(daemon.socket) as port:
        stop, numbers, answers = threading.Event(), itertools.count(), []

        def call():
            while not stop.is_set():
                number = next(numbers)
                answers.append((number % USERS, ask(port, f"/item/{number}", f"u{number % USERS}")))

        def until_one(is_so):
            count = len(answers)
            wait_until(lambda: any(is_so(*answer) for answer in answers[count:]))

        callers = [threading.Thread(target=call, daemon=True) for _ in range(2)]  # three failures open the breaker
        for caller in callers:
            caller.start()
        for _ in range(FLIPS):
            until_one(judged)  # the breaker may be open, if the daemon continued slowly
            daemon.process.send_signal(signal.SIGSTOP)
            until_one(unjudged)
            daemon.process.send_signal(signal.SIGCONT)
        stop.set()
        for caller in callers:
            caller.join(20)
        wrong = [answer for answer in answers if not rightly(*answer)]
        missed = sum(unjudged(*answer) for answer in answers)
        print(f"\n{application}: stopped {FLIPS} times, {len(answers)} answers, {missed} of them not judged")
        assert wrong == []
        assert FLIPS <= missed < len(answers)
        wait_until(lambda: judged(1, ask(port, "/item/1", "u1")))  # the breaker may be open: requests have no decision
        free(daemon, lambda: ask(port, "/item/0", "u1"), after="it was stopped")


def judged(user, answer):
    return limit_of(answer[1]) is not None or answer[0] == 403


def unjudged(user, answer):
    return not judged(user, answer)


def rightly(user, answer):
    """A response has its own user's limit, or none, with 200."""
    if user == 0:
        return (answer[0], limit_of(answer[1])) in ((403, None), (200, None))
    return answer[0] == 200 and limit_of(answer[1]) in (BURST + user, None)


@pytest.mark.parametrize("application", APPLICATIONS, ids=str)
def test_a_silent_daemon_gets_one_probe_per_pause(application, played):
    asked = []
    played.hears = lambda message: asked.append(time.monotonic()) if message[0] else None
    played.silent = True
    with application.serving(played.path, ASK_FIRST="0") as port:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as crowd:
            while time.monotonic() < began + SILENCE:
                answers = list(crowd.map(lambda n: ask(port, f"/item/{n}", "u1")[0], range(4)))
                assert answers == [200] * 4
                last = time.monotonic()
                time.sleep(0.01)
    took = last - began
    # Three failures, each of up to four concurrent requests, open the breaker: soon, or on a busy machine later, as
    # overlapping waits count once. Then there is one probe after each pause, which doubles and is shortened by jitter.
    probes = sum(end <= took for end in itertools.accumulate(PAUSES))
    late = sum(at > began + took / 2 for at in asked)
    print(f"\n{application}: asked {len(asked)} times in {took:.1f} s, {late} in the second half, of {probes}")
    assert len(asked) > FAILURES
    assert late <= probes
