"""The promises of a client, against a scripted daemon."""

import asyncio
import ctypes
import errno
import gc
import json
import logging
import math
import os
import pathlib
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from daemons import ALLOW, LIMIT, PATIENT, Played, frame, wait_until

import tidegate
from tidegate.answers import problem

SLACK = 2.0  # seconds beyond a deadline that a busy machine may cause


# In no path of a temporary folder, whose names are random.
CALLER = "u-of-a-caller"


def hits(client, count=1, **options):
    return [client.hit("api", {"user": CALLER}, **options) for _ in range(count)]


def reasons(decisions):
    return [decision.reason for decision in decisions]


# -- a request and its reply -------------------------------------------------------------------------------------------


def test_sends_hello_with_the_first_request(played, client):
    assert client.acquire("api", {"user": "u1"}).rule == "per-user"
    assert client.hit("api", {"user": "u1"}, cost=3, priority="post")
    assert client.peek("api", {"user": "u1"}, idem="x", queued=0.5, max_wait=0)
    hello, acquire, hit, peek = played.seen
    op, number, version, info = hello
    assert (op, number, version) == (0, 0, 1)
    assert len(info.pop("session")) == 16
    assert info == {"client": "python/0.1.0", "pid": os.getpid(), "pool": "default", "slots": 0, "connection": 1}
    assert acquire == [1, 1, "api", [["user", "u1"]], 1]
    assert hit == [3, 2, "api", [["user", "u1"]], 3, "post"]
    assert peek == [4, 3, "api", [["user", "u1"]], 1, None, {"idem": "x", "queued_us": 500_000, "max_wait_us": 0}]


def test_sends_pool_and_slots(played, make_client):
    assert make_client(pool="web", slots=8).check()
    assert (played.seen[0][3]["pool"], played.seen[0][3]["slots"]) == ("web", 8)


@pytest.mark.parametrize(
    "options",
    [
        *({"timeout": timeout} for timeout in (0, -1, math.nan, math.inf, 10.5, 1e7)),
        *({"slots": slots} for slots in (-1, 2.0, True, 1 << 32, 10**30, "4", None)),
        *({"pool": pool} for pool in ("a/b", "")),
        {"socket": "/tmp/\ud800"},
    ],
)
def test_invalid_options_of_a_client_raise(options):
    with pytest.raises(ValueError):
        tidegate.Client(**options)


def test_a_large_reply(played, client):
    entries = [["rule" * 20, 1, 2, 3, 4]] * 150
    played.script = lambda connection, message: [1, message[1], *ALLOW, None, None, entries]
    assert reasons(hits(client, 2)) == [None, None]
    assert client.stats()["connections"] == 1


def test_connects_with_the_first_request(directory, make_client):
    make_client()
    assert tidegate.Client("relative").stats() == {"missed": {}, "refused": {}, "connections": 0, "breaker_open": False}
    assert not list(directory.iterdir())


def test_connections_are_used_again_and_closed(played, client):
    hits(client, 50)
    assert client.stats()["connections"] == 1
    client.close()
    client.close()
    assert client.stats()["connections"] == 0
    assert reasons(hits(client)) == [None]  # the client may be used again
    assert [m[3]["connection"] for m in played.seen if m[0] == 0] == [1, 2]


def test_check(played, client):
    assert client.check()
    played.stop()
    assert not client.check()


# -- 1, 2: the deadline, and malformed replies -------------------------------------------------------------------------


def test_an_arrived_reply_counts_after_the_deadline(played, client, monkeypatch):
    hits(client)
    arrived = threading.Event()

    def answer(connection, message):
        connection.sendall(frame([1, message[1], *LIMIT]))
        arrived.set()

    played.script = answer
    # The process sleeps after the write of the request.
    clock = iter([0.0, 100.0])

    def asleep():
        now = next(clock, 100.0)
        if now:
            arrived.wait(5)
            time.sleep(0.05)
        return now

    monkeypatch.setattr(tidegate, "monotonic", asleep)
    assert hits(client)[0].verdict == "limit"


def test_refuses_without_a_daemon_only_if_configured(make_client):
    client = make_client(socket="/nowhere")
    assert [bool(client.hit("api", on_failure=word)) for word in ("refuse", "allow", None)] == [False, True, True]


@pytest.mark.parametrize("word", ["deny", "", "Refuse", True, 7])
def test_another_on_failure_raises(make_client, word):
    client, asynchronous = make_client(socket="/nowhere"), tidegate.AsyncClient("/nowhere")
    for call in (client.hit, client.limited, lambda *given, **more: client.limit(*given, **more).__enter__()):
        with pytest.raises(ValueError, match=f"^on_failure is allow or refuse, not {word!r}$"):
            call("api", on_failure=word)
    with pytest.raises(ValueError, match="on_failure is allow or refuse"):
        asyncio.run(asynchronous.peek("api", on_failure=word))


def test_any_value_is_sent(played, client):
    odd = [None, "", b"\xff", "🌊" * 400, "x" * 10**6, "\ud800", 1.5, object, {}, [], True, -(10**30), "a\x00b"]
    for value in odd:
        assert not client.hit("api", {"v": value}).degraded
    assert client.stats()["missed"] == {}


def test_a_release_does_not_wait_for_a_daemon_that_does_not_read(directory, make_client):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "s"))
    listener.listen(8)
    client, ends = make_client(), []

    def serve():
        ends.append(listener.accept()[0])
        ends[0].recv(4_096)
        ends[0].sendall(frame([1, 1, *ALLOW, 77]))

    threading.Thread(target=serve, daemon=True).start()
    decision = client.acquire("api")
    assert decision.lease == 77
    started = time.monotonic()
    while client.stats()["connections"] == 1 and time.monotonic() - started < 4:
        decision.lease = 77
        decision.release()
    assert client.stats()["connections"] == 0 and time.monotonic() - started < 4
    ends[0].close()
    listener.close()


# -- an orderly restart ------------------------------------------------------------------------------------------------


def test_retries_once(directory, make_client):
    client, made = make_client(), Played(str(directory / "s"))
    hits(client)
    made.stop()
    assert reasons(hits(client)) == ["unreachable"]
    client._until = 0.001  # ends the breaker's pause
    back = Played(str(directory / "s"))
    assert reasons(hits(client)) == [None]
    back.stop()


def test_does_not_retry_after_a_reset(played, client):
    hits(client)
    played.script = lambda connection, message: connection.close()
    assert reasons(hits(client)) == ["unreachable"]
    assert len(played.requests()) == 2


# -- 3: the breaker ----------------------------------------------------------------------------------------------------


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(tidegate, "monotonic", made)
    monkeypatch.setattr(tidegate.connection, "monotonic", made)
    monkeypatch.setattr(tidegate.random, "uniform", lambda low, high: {(0.5, 1.0): 1.0}[low, high])
    return made


def test_the_breaker(directory, make_client, clock):
    client = make_client()
    assert reasons(hits(client, 3)) == ["unreachable"] + ["breaker"] * 2  # immediate: no process listens
    for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 2, 2):  # at most: jitter halves each
        clock.now += pause - 0.01
        assert reasons(hits(client)) == ["breaker"]
        clock.now += 0.02
        assert reasons(hits(client, 2)) == ["unreachable", "breaker"]
    clock.now += 2.1
    made = Played(str(directory / "s"))
    assert reasons(hits(client, 2)) == [None, None]
    assert [message[0] for message in made.requests()] == [8, 3, 3]  # a ping, then the requests
    assert made.requests()[1][6] == {"missed": {"unreachable": 8, "breaker": 16}}
    made.stop()
    assert reasons(hits(client, 2)) == ["unreachable", "breaker"]  # starts again
    clock.now += 0.11
    assert reasons(hits(client)) == ["unreachable"]


def test_a_success_between_failures_closes_the_count(played, make_client, clock):
    client, answer = make_client(), played.script
    for _ in range(5):
        played.script = lambda connection, message: frame(b"\xc1")
        assert reasons(hits(client, 2)) == ["protocol"] * 2
        played.script = answer
        assert reasons(hits(client)) == [None]


def test_an_open_breaker_does_no_io(make_client, monkeypatch):
    client = make_client()
    hits(client, 3)
    client._until += 3_600
    monkeypatch.setattr(tidegate, "Connection", None)
    monkeypatch.setattr(socket, "socket", None)
    assert reasons(hits(client, 100)) == ["breaker"] * 100
    assert not client.check()


def test_an_open_breaker_is_fast(make_client):
    """Requires at most 100 µs, in the best of many rounds, since machines are busy."""
    client = make_client()
    hits(client, 3)
    client._until += 3_600
    rounds = []
    for _ in range(50):
        started = time.perf_counter()
        assert reasons(hits(client, 20)) == ["breaker"] * 20
        rounds.append((time.perf_counter() - started) / 20)
    assert min(rounds) <= 100e-6


def test_one_probe_at_a_time(played, make_client, clock):
    client = make_client()
    played.script = lambda connection, message: frame(b"\xc1")
    hits(client, 3)
    clock.now += 1.3
    played.silent, got = True, []
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    probe = threading.Thread(target=lambda: got.extend(hits(client)))
    probe.start()
    wait_until(lambda: played.of(8))
    assert reasons(hits(client, 20)) == ["breaker"] * 20
    played.silent = False
    played.connections[-1].sendall(frame([0, 0, 1, {}]) + frame([2, 1, True]))
    probe.join()
    assert reasons(got) == [None]
    assert reasons(hits(client, 2)) == [None] * 2


def test_a_late_prober_leaves_the_breaker_closed(played, make_client, clock):
    client, answer = make_client(), played.script
    played.script = lambda connection, message: frame(b"\xc1")
    hits(client, 3)
    played.script = answer
    clock.now += 1.3

    class Overtaken:
        """The client's lock, which another thread takes before, once."""

        def __enter__(self):
            client._lock = lock
            probe = threading.Thread(target=hits, args=(client,))
            probe.start()
            probe.join()
            assert not client.stats()["breaker_open"]
            return lock.__enter__()

        def __exit__(self, *error):
            return lock.__exit__(*error)

    lock, client._lock = client._lock, Overtaken()
    assert client.check() and not client.stats()["breaker_open"]
    assert reasons(hits(client, 5)) == [None] * 5


def test_another_thread_probes_if_a_probe_dies(make_client, clock, monkeypatch):
    client = make_client()
    hits(client, 3)
    clock.now += 1.3

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tidegate, "Connection", die)
        with pytest.raises(KeyboardInterrupt):
            hits(client)
    assert reasons(hits(client)) == ["breaker"]
    clock.now += 5.1
    assert reasons(hits(client)) == ["unreachable"]


def test_an_interrupt_closes_the_connection(played, make_client, monkeypatch):
    client = make_client()
    hits(client)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(client._connections()[0], "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.acquire("api")
    assert client.stats()["connections"] == 0
    assert reasons(hits(client)) == [None]
    # The daemon may read the interrupted request after it, in another thread.
    assert {"abandoned": [[1, 2]]} in [message[6] for message in played.seen if len(message) > 6]


# -- 4: forks and threads ----------------------------------------------------------------------------------------------


def in_child(work, fork=os.fork):
    """Runs `work` in a forked child; true if it returned true, false if it hangs."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(30)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fork_past_python():
    """Forks like a C library: no hook runs."""
    time.sleep(0.02)  # a thread of the daemon waiting for the GIL would keep its lock in the child
    return ctypes.PyDLL(None).fork()


@pytest.mark.parametrize("page", [True, False], ids=["page", "pid"])
@pytest.mark.parametrize("fork", [os.fork, fork_past_python])
def test_a_child_has_its_own_connection_and_session(played, client, fork, page):
    assert client._page[0] == 1
    if not page:  # like a kernel without WIPEONFORK
        client._page = bytes(1)
    hits(client, 2)
    client._missed["timeout"] += 1
    inherited = client._connections()[0].socket
    number = inherited.fileno()

    def child():
        decisions = hits(client, 2)
        own = client._connections()[0].socket
        return (
            reasons(decisions) == [None, None]
            and inherited.fileno() == -1
            and own is not inherited
            and (client.stats()["missed"] == {})
        )

    assert in_child(child, fork)
    assert inherited.fileno() == number
    assert reasons(hits(client, 2)) == [None, None]  # the parent's client works
    first, second = [m[3] for m in played.seen if m[0] == 0]
    assert first["session"] != second["session"] and first["pid"] != second["pid"]
    assert (first["connection"], second["connection"]) == (1, 1)
    assert [m[1] for m in played.requests()] == [1, 2, 1, 2, 3, 4]  # the child wrote no byte to the parent's connection


def test_a_fork_during_a_request_of_another_thread(played, make_client):
    """Locks and half-read connections of other threads do not reach the child."""
    client, stop = make_client(), threading.Event()

    def ask():
        while not stop.is_set():
            hits(client)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: reasons(hits(client, 3)) == [None] * 3 and len(client._connections()) == 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert client.stats()["missed"] == {}


def test_threads_do_not_share_a_reply(played, client):
    played.script = lambda connection, message: [1, message[1], 0, message[3][0][1], 40, 2, message[4], 0, 0]
    wrong = []

    def ask(user):
        for i in range(300):
            decision = client.hit("api", {"user": user}, cost=i)
            if (decision.rule, decision.remaining) != (user, i):
                wrong.append((user, i, decision.rule, decision.remaining, decision.reason))

    threads = [threading.Thread(target=ask, args=(f"u{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.stats()["connections"] <= 8


def test_the_pool_is_bounded(played, client, monkeypatch):
    monkeypatch.setattr(tidegate, "IDLE_MAX", 2)
    barrier = threading.Barrier(6)

    def answer(connection, message):
        barrier.wait(5)
        return [1, message[1], *ALLOW]

    played.script = answer
    threads = [threading.Thread(target=hits, args=(client,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.stats() == {"missed": {}, "refused": {}, "connections": 2, "breaker_open": False}


def test_reports_are_bounded_and_restored(played, make_client, monkeypatch):
    monkeypatch.setattr(tidegate, "ABANDONED_MAX", 3)
    monkeypatch.setattr(tidegate, "FAILURES_MAX", 1_000)
    client, answer = make_client(), played.script
    played.script = lambda connection, message: frame(b"\xc1")
    for _ in range(5):
        client.acquire("api")
    played.script = answer
    client.hit("api", {f"k{i}": "x" * 1_000 for i in range(9)})  # too large to add a report
    assert len(played.seen[-1]) == 5
    report = client.hit("api") and played.last_report()
    assert report["missed"] == {"protocol": 5} and len(report["abandoned"]) == 3


def test_one_shot_iterators_are_sent_with_a_report(played, make_client):
    client, answer = make_client(), played.script
    played.script = lambda connection, message: frame(b"\xc1")
    client.hit("api")
    played.script = answer
    assert client.hit("api", (pair for pair in [("user", "u1")]), priority="post")
    assert played.seen[-1][3:] == [[["user", "u1"]], 1, "post", {"missed": {"protocol": 1}}]


def test_no_free_descriptor_is_a_degraded_decision(played, make_client):
    client = make_client()
    client.acquire("api").release()
    client.close()
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
    try:
        assert reasons(hits(client)) == ["unreachable"]
        assert not client.check() and client.stats()["connections"] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_without_free_descriptor_threads_share_the_open_connections(played, make_client):
    client, held = make_client(timeout=PATIENT), []
    assert client.check()
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    played.script = lambda connection, message: held.append((connection, message))
    with ThreadPoolExecutor(2) as threads:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
            first = threads.submit(client.hit, "api")
            wait_until(lambda: held)
            second = threads.submit(client.hit, "api")
            wait([second], timeout=0.05)  # it has found no descriptor
            played.script = lambda connection, message: [1, message[1], *ALLOW]
            for connection, message in held:
                connection.sendall(frame([1, message[1], *ALLOW]))
            assert reasons([first.result(), second.result()]) == [None, None]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)


PROGRAM = """
import os, resource, sys
import tidegate
client = tidegate.Client(sys.argv[1], timeout=10)
assert client.check()
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
decision = client.hit("api", {"user": "u1"})
assert decision.headers()["RateLimit"] and decision.message.startswith("Over the limit per-user")
try:
    client.limited("api")(int)()
except tidegate.Denied:
    pass
assert client.hit("api", {"user": object()}).reason == "invalid"
client.signal("x", float("nan"))
client.close()
os.dup(0)  # the one that is free again
assert client.hit("api").reason == "unreachable"
"""


def test_nothing_is_imported_within_a_call(played):
    """It would fail without a free descriptor."""
    played.script = lambda connection, message: [1, message[1], *LIMIT]
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(tidegate.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, played.path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Too many open files" in done.stderr  # logged


# -- 5, 6: socket paths ------------------------------------------------------------------------------------------------


def test_paths_of_the_socket(directory, make_client, monkeypatch):
    find = lambda **options: make_client(**options)._find()  # noqa: E731
    assert find(socket="") == "/run/tidegate/tidegate.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    assert find(socket=None) == "/run/tidegate/tidegate.sock"
    (directory / "tidegate").mkdir()
    (directory / "tidegate/tidegate.sock").touch()
    assert find(socket=None) == str(directory / "tidegate/tidegate.sock")
    monkeypatch.setenv("TIDEGATE_SOCKET", "/elsewhere")
    assert find(socket=None) == "/elsewhere"
    assert find(socket=directory / "s") == str(directory / "s")
    assert find(socket=bytes(directory / "s")) == str(directory / "s")


def test_the_timeout_of_the_environment(make_client, monkeypatch, caplog):
    monkeypatch.setenv("TIDEGATE_TIMEOUT_MS", "250")
    assert tidegate.Client()._timeout == 0.25
    assert tidegate.Client(timeout=0.5)._timeout == 0.5
    for bad in ("", "soon", "-1", "nan", "0", "10001", "1e3", "٣"):
        monkeypatch.setenv("TIDEGATE_TIMEOUT_MS", bad)
        assert tidegate.Client()._timeout == 0.020
        said = f'tidegate: TIDEGATE_TIMEOUT_MS is "{bad}", not above 0 and up to 10000: the timeout is 20 ms'
        assert caplog.messages == ([said] if bad else [])
        caplog.clear()


@pytest.mark.parametrize(("value", "enabled"), [("1", False), ("true", False), ("0", True), ("", True)])
def test_disabled_by_the_environment(played, make_client, monkeypatch, caplog, value, enabled):
    monkeypatch.setenv("TIDEGATE_DISABLE", value)
    asyncio.run(tidegate.AsyncClient(played.path, timeout=PATIENT).hit("api"))
    played.seen.clear()
    client = make_client()
    assert client.hit("api", on_failure="refuse").allowed
    assert client.check() is enabled
    assert client.hit("api").allowed
    assert caplog.messages == ([] if enabled else 2 * [f'tidegate: TIDEGATE_DISABLE is "{value}": nothing is limited'])
    assert bool(played.seen) is enabled


def test_disabled_by_the_argument(played, make_client):
    client = make_client(enabled=False)
    decision = client.acquire("api", {"user": "u1"}, on_failure="refuse")
    assert decision and decision.reason == "disabled" and decision.headers() == {}
    assert not client.check() and played.seen == [] and client.stats()["missed"] == {}


def test_a_long_path_is_reported(make_client, caplog, long_pauses):
    client = make_client(socket="/tmp/" + "x" * 103)
    assert reasons(hits(client, 5)) == ["unreachable"] * 3 + ["breaker"] * 2
    assert len(caplog.messages) == 1 and "path too long" in caplog.messages[0]


# -- 7: the log --------------------------------------------------------------------------------------------------------


def test_logs_a_failure_and_its_end_once(directory, make_client, caplog, clock):
    client = make_client()
    hits(client, 10)
    assert len(caplog.messages) == 1
    assert "no daemon at" in caplog.messages[0] and "requests are not limited" in caplog.messages[0]
    clock.now += 2
    hits(client, 10)
    assert len(caplog.messages) == 1
    clock.now += 5
    made = Played(str(directory / "s"))
    hits(client, 10)
    assert len(caplog.messages) == 2 and "answers again; 20 requests" in caplog.messages[1]
    answer = made.script
    for _ in range(3):  # later single failures change no state
        made.script = lambda connection, message: frame(b"\xc1")
        hits(client)
        made.script = answer
        hits(client)
    assert len(caplog.messages) == 2
    made.stop()
    hits(client, 10)
    assert len(caplog.messages) == 3
    assert CALLER not in caplog.text and "user" not in caplog.text


def test_permission_denied_names_the_group(directory, make_client, caplog, monkeypatch):
    class Denied(tidegate.connection.Socket):
        def connect_ex(self, path):
            return errno.EACCES

    monkeypatch.setattr(tidegate.connection, "Socket", Denied)
    (directory / "s").touch()
    (directory / "s").chmod(0o660)
    hits(make_client())
    assert "permission denied on" in caplog.text and "is not in group" in caplog.text


def test_ignores_exceptions_of_the_logger(make_client):
    class Broken(logging.Logger):
        def warning(self, *_, **__):
            raise RuntimeError

    assert hits(make_client(logger=Broken("broken")))[0].allowed


def test_an_unreferenced_client_is_collected(played, make_client):
    client = tidegate.Client(played.path, timeout=1.0)
    hits(client)
    client.close()
    del client
    gc.collect()
    assert not [c for c in tidegate._CLIENTS if c._path == played.path]


REFUSED = [*LIMIT, None, None, None, {"rate": "20/s", "digest": "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"}]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refusal_has_domain_rule_and_digest(played, client, directory, asynchronous):
    async def asked():
        ac = tidegate.AsyncClient(str(directory / "s"), timeout=PATIENT)
        return [await ac.hit("shop"), await ac.hit("shop")]

    verdicts = [ALLOW, REFUSED]
    played.script = lambda connection, message: [1, message[1], *verdicts.pop(0)]
    allowed, refused = asyncio.run(asked()) if asynchronous else [client.hit("shop"), client.hit("shop")]
    assert (allowed.domain, allowed.digest) == (None, None)
    assert (refused.domain, refused.rule, refused.digest) == ("shop", "per-user", REFUSED[-1]["digest"])
    body = json.loads(problem(refused))
    assert (body["domain"], body["digest"]) == ("shop", refused.digest)
    copied = pickle.loads(pickle.dumps(refused))
    assert repr(copied) == repr(refused)
    assert "domain='shop' rule='per-user' limit=40" in repr(refused) and repr(refused.digest) in repr(refused)


UNMATCHED = [0, None, None, None, None, None, 0, None, ["unmatched", "domain"]]
