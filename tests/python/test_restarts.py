"""The daemon is ended repeatedly under a real application's traffic: no request fails, and no token is granted
twice except those that a kill loses."""

import signal
import threading
import time

import pytest

from lives import END, ROUNDS, SERVER, START, decided, end, refused, say, start, wait_for
from servers import get, gunicorn, metrics, wait_until
from traffic import Callers, Pipes, now

BURST, RATE = 30, 2
SHARE = 300  # per user while the daemon is ended orderly
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
    # Closing the processes' sessions ends all their leases.
    wait_until(lambda: metrics(kept)["tidegate_leases"] == 0)


def written_at(daemon):
    """Returns the time at which the copy of the tables began, from their head: see src/state/snapshot.rs."""
    tables = (daemon.state / "tables").read_bytes()[:64]
    assert tables[:16] == b"tidegate" + (2).to_bytes(8, "little")
    # The lists of the head and of the clocks, the clock's identity in 16 bytes, and its reading.
    before, at = tables[28:32] + tables[48:49], tables[49:57]
    assert before == b"\x94\x93\xc4\x10\xcf", before
    return int.from_bytes(at, "big")


def test_a_kill_regrants_only_tokens_since_the_last_write(kept, served, rng):
    kept.options += ["--write-state-every", "100"]
    kept.stop()
    starts, waits, doubtful = [start(kept)], [], []
    with Callers(served, path="/v1/steady") as callers:
        wait_for(callers, refused, 0)
        began = 0
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(0, 0.25))
            kept.stop(kill=True)
            doubtful.append((max(written_at(kept), began), now()))
            began = now()
            starts.append(start(kept))
            waits.append(wait_for(callers, decided, now()))
    answers = callers.answers
    assert {answer.status for answer in answers} == {200, 429}, "the application answered every request"
    admitted, span = [answer for answer in answers if answer.admitted], answers[-1].answered - answers[0].asked
    # Decisions before the copy are in the file; later ones may be or not.
    again = sum(copied <= it.answered and it.asked <= killed for copied, killed in doubtful for it in admitted)
    bound = BURST + RATE * span / 1e9 + again
    print(f"{ROUNDS} kills: {len(admitted)} admitted, at most {bound:.0f} of which {again} may be given again")
    assert BURST < len(admitted) <= bound < (ROUNDS + 1) * BURST, "a burst for each life would be seen"
    say("serving after the start", starts, START)
    say("and the first of the application's clients asks again", waits)
    assert not (kept.state / "tables.bad").exists()


def test_orderly_restarts_answer_all_and_regrant_nothing(kept, served, rng, directory):
    ends, starts = [], []
    with Callers(served, user="u0") as callers, Callers(served, 6, "/work") as workers, Pipes(kept, user="u0") as pipes:
        for number in range(ROUNDS):
            # A user's tokens are spent before and after an end.
            began, callers.user, pipes.user = now(), f"u{number}", f"u{number}"
            wait_for(pipes, lambda answer, user=pipes.user: answer.user == user and answer.admitted, began)
            time.sleep(rng.uniform(0, 0.1))
            if number % 2:
                hold_up(kept.process)
            ends.append(end(kept))
            starts.append(start(kept))
            for crowd in callers, pipes:
                wait_for(crowd, lambda answer, user=crowd.user: answer.user == user and refused(answer), now())
            wait_for(workers, decided, now())
    answers = callers.answers + pipes.answers
    assert {answer.status for answer in answers + workers.answers} == {200, 429}, "the application answered everything"
    admitted = [sum(answer.admitted and answer.user == f"u{number}" for answer in answers) for number in range(ROUNDS)]
    assert max(admitted) <= SHARE and min(admitted) > 0, admitted
    # This side closed the last connections.
    broken = [(taken, replies) for taken, replies, _ in pipes.ends if taken != replies]
    assert not broken and sum(is_goodbye for _, _, is_goodbye in pipes.ends) >= ROUNDS, broken
    assert most_at_once(directory / "work") == PLACES
    # A client whose lease ended without a daemon reports it with its next request.
    wait_until(lambda: metrics(kept)["tidegate_leases"] == 0 or not get(served, "last", "/last"))
    requests = sum(taken for taken, _, _ in pipes.ends)
    print(f"{ROUNDS} ends, {requests} requests written without waiting, {len(answers)} judged")
    print(f"of each user's {SHARE} {min(admitted)} to {max(admitted)} were admitted")
    say("ended after TERM", ends, END)
    say("serving after the start", starts, START)


def hold_up(process):
    """Lets requests queue unread by the daemon until just after the signal to end."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.02)
    threading.Timer(0.01, process.send_signal, [signal.SIGCONT]).start()


def most_at_once(notes):
    """Returns the maximum number of concurrent leases of the daemon, as seen by the application."""
    under_way, most = 0, 0
    for _, change in sorted((int(at), int(change)) for at, change in map(str.split, notes.read_text().splitlines())):
        under_way += change
        most = max(most, under_way)
    assert under_way == 0
    return most
