"""The daemon ended again and again under a real application's traffic: nobody's request fails, and nothing is given
twice but what a kill takes away."""

import os
import random
import statistics
import time

import pytest

from servers import get, gunicorn, metrics, wait_until
from traffic import Callers, Pipes, now

ROUNDS = int(os.environ.get("KILLS", "10"))  # how often each test ends the daemon; `make nightly`: a hundred times
SERVER = ["--workers", "2", "--worker-class", "gthread", "--threads", "8"]
# What is promised, and how much more a busy machine and a debug build may take.
START, END, SLACK = 0.3, 1.0, 10
BURST, RATE = 30, 2
SHARE = 300  # of each user while the daemon is ended in order
PLACES = 3
RULES = f"""
domain: api
limits:
  - {{name: steady, match: {{path: /v1/steady}}, key: [user], rate: {RATE}/s, burst: {BURST}}}
  - {{name: once, match: {{path: /v1/orders}}, key: [user], rate: 1/h, burst: {SHARE}}}
concurrency:
  - {{name: at-once, match: {{path: /work}}, key: [], max: {PLACES}, expires: 1h}}
"""
APP = """
import os, pathlib, random, time, tidegate
from tidegate.wsgi import Middleware

notes = os.open(pathlib.Path(__file__).parent / "work", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(what):
    os.write(notes, f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {what}\\n".encode())

def app(environ, start_response):
    if environ["PATH_INFO"] == "/work" and environ["tidegate.decision"].lease is not None:
        note(1)
        time.sleep(random.choice([0.01, 0.05, 0.7]))
        note(-1)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]

client = tidegate.Client()
app = Middleware(app, client, domain="api", user=lambda environ: environ.get("HTTP_X_USER"))
"""


@pytest.fixture
def kept(daemon):
    """A daemon that keeps its state."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.state.mkdir()
    daemon.start()
    return daemon


@pytest.fixture
def served(kept, directory):
    with gunicorn(kept, directory, APP, *SERVER) as port:
        yield port
    # With the processes goes all their work.
    wait_until(lambda: metrics(kept)["tidegate_leases"] == 0)


@pytest.fixture
def dice():
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    return random.Random(seed)


def start(daemon):
    """How long it took, in seconds."""
    began = time.monotonic()
    daemon.start()
    return time.monotonic() - began


def wait_for(crowd, is_wanted, since):
    """Until somebody has such an answer to what was asked since then."""
    wait_until(lambda: any(answer.asked > since and is_wanted(answer) for answer in list(crowd.answers)), 30)


def is_decided(answer):
    return answer.decided


def is_refused(answer):
    return answer.status == 429


def written_at(daemon):
    """When the tables that stand there began to be copied, from their head: see src/state/tables.rs."""
    tables = (daemon.state / "tables").read_bytes()[:64]
    assert tables[:16] == b"tidegate" + (1).to_bytes(8, "little")
    return int.from_bytes(tables[24 + 12 + 17 :][:8], "little")


def say(what, seconds, promised):
    """Prints a figure, and sees to it that it is what was promised: mostly, and never by far more."""
    most, median = max(seconds), statistics.median(seconds)
    print(f"{what}: at most {most * 1000:.0f} ms, median {median * 1000:.0f} ms of {len(seconds)}")
    assert median <= promised and most <= SLACK * promised


def test_killed_in_mid_traffic_it_gives_again_what_came_since_the_last_write_and_no_more(kept, served, dice):
    kept.options += ["--write-state-every", "100"]
    kept.stop()
    starts, again = [start(kept)], 0
    with Callers(served, path="/v1/steady") as callers:
        wait_for(callers, is_refused, 0)
        began = 0
        for _ in range(ROUNDS):
            time.sleep(dice.uniform(0, 0.25))
            kept.stop(kill=True)
            killed, written = now(), max(written_at(kept), began)
            # Answered before that it is in the file; afterwards it may be.
            again += sum(answer.admitted and written <= answer.answered <= killed for answer in list(callers.answers))
            began = now()
            starts.append(start(kept))
            wait_for(callers, is_decided, now())
    answers = callers.answers
    assert {answer.status for answer in answers} == {200, 429}, "the application answered every request"
    admitted, span = [answer for answer in answers if answer.admitted], answers[-1].answered - answers[0].asked
    bound = BURST + RATE * span / 1e9 + again
    print(f"{ROUNDS} kills: {len(admitted)} admitted, at most {bound:.0f} of which {again} may be given again")
    assert BURST < len(admitted) <= bound < (ROUNDS + 1) * BURST, "a burst for each life would be seen"
    say("serving after the start", starts, START)
    assert not (kept.state / "tables.bad").exists()


def test_ended_in_order_it_answers_all_it_has_received_and_gives_nothing_again(kept, served, dice, directory):
    ends, starts = [], []
    with Callers(served, user="u0") as callers, Callers(served, 6, "/work") as workers, Pipes(kept, user="u0") as pipes:
        for number in range(ROUNDS):
            # A user's share lies on both sides of an end.
            callers.user = pipes.user = user = f"u{number}"
            wait_for(pipes, lambda answer, user=user: answer.user == user and answer.admitted, 0)
            time.sleep(dice.uniform(0, 0.1))
            began = time.monotonic()
            kept.stop()
            ends.append(time.monotonic() - began)
            starts.append(start(kept))
            for crowd in callers, pipes:
                wait_for(crowd, lambda answer, user=user: answer.user == user and is_refused(answer), now())
            wait_for(workers, is_decided, now())
    answers = callers.answers + pipes.answers
    assert {answer.status for answer in answers + workers.answers} == {200, 429}, "the application answered everything"
    admitted = [sum(answer.admitted and answer.user == f"u{number}" for answer in answers) for number in range(ROUNDS)]
    assert max(admitted) <= SHARE and min(admitted) > 0, admitted
    # The last connections were ended from this side.
    broken = [end for end in pipes.ends if end[0] != end[1]]
    assert not broken and sum(is_goodbye for _, _, is_goodbye in pipes.ends) >= ROUNDS, broken
    assert most_at_once(directory / "work") == PLACES
    # Who ended work while no daemon was there says so with his next request.
    wait_until(lambda: metrics(kept)["tidegate_leases"] == 0 or not get(served, "last", "/last"))
    requests = sum(taken for taken, _, _ in pipes.ends)
    print(f"{ROUNDS} ends, {requests} requests written without waiting, {len(answers)} judged, {admitted} admitted")
    say("ended after TERM", ends, END)
    say("serving after the start", starts, START)


def most_at_once(notes):
    """How much work was under way at once under leases of the daemon, as the application saw it."""
    under_way, most = 0, 0
    for _, change in sorted((int(at), int(change)) for at, change in map(str.split, notes.read_text().splitlines())):
        under_way += change
        most = max(most, under_way)
    assert under_way == 0
    return most
