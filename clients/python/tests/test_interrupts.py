"""Exceptions of the application inside a call pass unchanged, and leave no lease or connection."""

import asyncio
import contextlib
import copy
import ctypes
import gc
import logging
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from daemons import ALLOW, PATIENT, frame, wait_until

import tidegate
import tidegate.wsgi
from tidegate import Decision

RULES = "domain: api\nconcurrency: [{name: at-once, key: [], max: 5000, expires: 1h}]\n"
TIMES = 100


class SoftLimit(Exception):
    """Like Celery's: an Exception raised by a signal handler."""


KINDS = [SoftLimit, TimeoutError, ConnectionResetError, BlockingIOError, OSError, ValueError, LookupError]


@pytest.fixture
def alarm():
    """Raises in this thread after some seconds, by a signal handler."""
    raised = []

    def arm(kind, seconds):
        def handler(*_):
            raised.append(kind("the application's own"))
            raise raised[-1]

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return raised

    before, arm.raised = signal.getsignal(signal.SIGALRM), raised
    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_while_waiting_passes(played, make_client, alarm, kind):
    client = make_client(timeout=PATIENT)
    client.hit("api")
    played.script = lambda connection, message: signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    for call in (client.acquire, client.hit, client.peek, client.charge):
        raised = alarm(kind, PATIENT)
        with pytest.raises(kind) as caught:
            call("api", {"user": "u1"})
        assert [caught.value] == raised
        raised.clear()
        assert client.stats()["connections"] == 0 and client.stats()["missed"] == {}
        assert client._lock.acquire(blocking=False)
        client._lock.release()
    assert client._report["abandoned"] == [[1, 2]] and client._failures == 0
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    assert not client.hit("api").degraded


@pytest.mark.parametrize("kind", [SoftLimit, TimeoutError, OSError])
def test_exceptions_at_random_times_pass_and_leave_no_lease(daemon, make_client, alarm, kind):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    client, rng, lost, done = make_client(socket=daemon.socket), random.Random(7), 0, 0
    raised = alarm.raised
    began = time.monotonic()
    for _ in range(20):
        with client.limit("api", {"user": "u1"}):
            pass
    usual = (time.monotonic() - began) / 20
    for _ in range(TIMES):
        try:
            alarm(kind, rng.uniform(0.2, 5) * usual)
            while not raised:
                with client.limit("api", {"user": "u1"}):
                    pass
                done += 1
            lost += 1
        except kind as error:
            assert [error] == raised
        raised.clear()
    assert lost == 0 and client.stats()["missed"] == {} and client.stats()["refused"] == {}
    until = time.monotonic() + 2 * PATIENT
    asking = make_client(socket=daemon.socket)
    while asking.peek("api").remaining < 5000:
        client.hit("api")  # reports abandoned requests
        assert time.monotonic() < until, asking.peek("api")
        time.sleep(0.01)
    assert client.stats()["connections"] <= 2 and done > 0


def test_an_exception_of_another_thread_passes(played, make_client):
    client, got, raised = make_client(timeout=PATIENT), [], threading.Event()
    client.hit("api")
    played.script = lambda connection, message: (raised.wait(PATIENT), [1, message[1], *ALLOW])[1]

    def work():
        try:
            client.hit("api")
        except OSError as error:
            got.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(played.of(3)) == 2)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeoutError))
    raised.set()
    thread.join()
    assert got == [TimeoutError]


def test_an_exception_in_a_callback_or_logger_passes(played, make_client, alarm):
    class Slow(logging.Logger):
        def warning(self, *_, **__):
            time.sleep(PATIENT)

    def user(environ):
        time.sleep(PATIENT)

    def on_refused(environ, decision):
        time.sleep(PATIENT)

    with pytest.raises(SoftLimit):
        alarm(SoftLimit, 0.02)
        tidegate.Client("/nowhere", logger=Slow("slow")).hit("api")
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}
    played.script = lambda connection, message: [1, message[1], 4, "bots"]
    for options in ({"user": user}, {"on_refused": on_refused}):
        with pytest.raises(SoftLimit):
            alarm(SoftLimit, 0.02)
            tidegate.wsgi.Middleware(None, make_client(), **options)(environ, None)
    limited = make_client().limited("api", lambda: time.sleep(PATIENT))(lambda: None)
    with pytest.raises(SoftLimit):
        alarm(SoftLimit, 0.02)
        limited()


def test_distinguishes_exceptions_of_callbacks(make_client, alarm):
    alarm(SoftLimit, 60)  # a handler is installed, but not involved
    limited = make_client().limited("api", lambda: 1 / 0)(lambda: 7)
    assert limited() == 7


def test_an_interrupted_release_is_reported(played, client, alarm, monkeypatch):
    played.script = lambda c, m: [1, m[1], *ALLOW, 77] if m[0] == 1 else [1, m[1], *ALLOW]
    decision = client.acquire("api")

    def interrupted(*_):
        raise SoftLimit

    with monkeypatch.context() as patched:
        patched.setattr(client._connections()[0], "send", interrupted)
        with pytest.raises(SoftLimit):
            decision.release()
    client.hit("api")
    assert {"abandoned": [[1, 1]]} in [message[6] for message in played.of(3) if len(message) > 6]


@pytest.mark.parametrize("kind", [SoftLimit, TimeoutError])
def test_in_asyncio_exceptions_thrown_into_a_task_pass(played, kind):
    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=PATIENT)
        await ac.check()
        played.script = lambda connection, message: None
        asking = ac.acquire("api")
        asking.send(None)  # runs until it waits
        with pytest.raises(kind):
            asking.throw(kind("the application's own"))
        assert ac._core._report == {"abandoned": [[1, 2]]}
        ac.close()

    asyncio.run(main())


# -- collection, with, repr and pickling -------------------------------------------------------------------------------


def test_no_warning_when_clients_are_collected(played):
    async def main():
        await tidegate.AsyncClient(played.path, timeout=PATIENT).hit("api")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = tidegate.Client(played.path, timeout=PATIENT)
        assert not client.hit("api").degraded
        del client
        asyncio.run(main())
        gc.collect()


def test_no_warning_at_the_end_of_a_program(played):
    code = "import sys, tidegate; c = tidegate.Client(sys.argv[1], timeout=5); assert not c.hit('api').degraded"
    command = [sys.executable, "-X", "dev", "-c", code, played.path]
    path = str(tidegate.__path__[0]).removesuffix("/tidegate")
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path}, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_a_client_closes_it(played):
    with tidegate.Client(played.path, timeout=PATIENT) as client:
        assert not client.hit("api").degraded
    assert client.stats()["connections"] == 0


def grant(connection, message):
    return [1, message[1], *ALLOW, 77]


def test_repr_has_the_decision(played, client):
    played.script = grant
    assert repr(client.acquire("api")) == (
        "<Decision allow rule='per-user' limit=40 remaining=39 retry_after=0.0 lease=77>"
    )
    assert repr(Decision([2], reason="timeout")) == "<Decision shed reason='timeout'>"


@pytest.mark.parametrize("through", [lambda d: pickle.loads(pickle.dumps(d)), copy.copy, copy.deepcopy])
def test_a_copy_has_all_fields_and_ends_nothing(played, client, through):
    played.script = grant
    decision = client.acquire("api")
    other = through(decision)
    assert (other.rule, other.lease, other.headers(), bool(other)) == ("per-user", 77, decision.headers(), True)
    assert type(other) is Decision and repr(other) == repr(decision)
    other.release()
    assert not other.renew()
    decision.release()
    assert played.releases() == [[77, 0]]
    denied = pickle.loads(pickle.dumps(tidegate.Denied(decision)))
    assert denied.decision.rule == "per-user"


def test_a_copy_of_an_asynchronous_decision(played):
    async def main():
        async with tidegate.AsyncClient(played.path, timeout=PATIENT) as ac:
            return pickle.loads(pickle.dumps(await ac.hit("api")))

    assert asyncio.run(main()).limit == 40


def test_a_handler_that_only_interrupts_changes_nothing(played, make_client):
    client = make_client(timeout=PATIENT)
    played.script = lambda c, m: (time.sleep(0.05), frame([1, m[1], *ALLOW, *[None] * 4]))[1]
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGALRM, before)
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        assert [client.hit("api").reason for _ in range(5)] == [None] * 5
