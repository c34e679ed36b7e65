"""A short delay of the daemon, this process or its event loop degrades almost no decision."""

import asyncio
import contextlib
import select
import signal
import socket
import threading
import time

import pytest
from daemons import ALLOW, PATIENT, Played, frame, wait_until

import tidegate
import tidegate.connection

TIMEOUT, PAUSES = 0.4, 2  # seconds; how often the test stops the daemon
RULES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1000000/s, burst: 2000000}]\n"


def reasons(decisions):
    return [decision.reason for decision in decisions]


def test_a_pause_of_the_daemon_costs_few_decisions(daemon, make_client):
    """SIGSTOP for 1.5 deadlines while 8 threads call: each may lose a few calls, but none because of another thread."""
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    client, stop, counts = make_client(socket=daemon.socket, timeout=TIMEOUT), threading.Event(), []

    def ask():
        asked = missed = 0
        while not stop.is_set():
            asked, missed = asked + 1, missed + client.hit("api", {"user": "u1"}).degraded
        counts.append((asked, missed))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(PAUSES):
        time.sleep(TIMEOUT / 4)
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * TIMEOUT)
        daemon.process.send_signal(signal.SIGCONT)
    time.sleep(TIMEOUT / 4)
    stop.set()
    for thread in threads:
        thread.join()
    asked, missed = map(sum, zip(*counts))
    print(f"\n{PAUSES} pauses: {missed} of {asked} calls unjudged, {missed / PAUSES:.1f} each")
    # a breaker open for 0.1 s would add thousands
    assert 8 <= missed <= 80 * PAUSES
    assert client.stats()["missed"].get("breaker", 0) <= missed / 2


def test_overlapping_failures_count_once(played, make_client):
    client, got, ask = make_client(), [], lambda: got.append(client.hit("api").reason)
    for window in (1, 2):
        asked = threading.Barrier(8)  # all have begun before the first fails
        played.script = lambda connection, message, asked=asked: (asked.wait(PATIENT), frame(b"\xc1"))[1]
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (client._failures, client.stats()["breaker_open"]) == (window, False)
    assert got == ["protocol"] * 16
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    assert client.hit("api").reason is None and client._failures == 0


def test_opens_immediately_without_a_listener(directory, make_client, long_pauses):
    for path in ("/nowhere", str(directory / "refused")):
        if path != "/nowhere":
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(path)
        client = make_client(socket=path)
        assert reasons(client.hit("api") for _ in range(3)) == ["unreachable", "breaker", "breaker"]


def test_a_probe_is_a_ping_on_its_own_connection(played, make_client, monkeypatch):
    client = make_client(timeout=0.1)
    played.silent = True
    assert reasons(client.hit("api") for _ in range(3)) == ["timeout"] * 3
    assert 0.05 <= client._until - client._failed_at <= 0.1
    monkeypatch.setattr(tidegate, "PAUSE_MAX", 120.0)
    client._until += 60
    client._pause = 60.0
    assert client.hit("api").reason == "breaker"
    for probes in (1, 2):  # without a reply
        client._until = time.monotonic()
        assert reasons(client.acquire("api") for _ in range(2)) == ["timeout", "breaker"]
        wait_until(lambda count=probes: len(played.of(8)) == count)
        assert played.of(1) == []
    played.silent, client._until, client._timeout = False, time.monotonic(), PATIENT
    assert reasons(client.acquire("api") for _ in range(2)) == [None, None]
    assert len(played.of(8)) == 3 and client._pause == 0


def test_pauses_grow_while_only_probes_succeed(played, make_client):
    client, pauses = make_client(timeout=0.05), []
    played.script = lambda connection, message: None
    for _ in range(7):
        while not client.stats()["breaker_open"]:
            client.hit("api")
        pauses.append(client._pause)
        client._until = time.monotonic()
        assert client.hit("api").reason == "timeout"  # after a ping
    assert pauses == sorted(pauses) and pauses[0] == 0.1 and pauses[-1] == 2.0


def test_waits_for_a_full_backlog(directory, make_client):
    """Until the deadline: a daemon without room for a connection was busy for a moment."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(directory / "s"))
    made.listen(0)
    fill = []
    with contextlib.suppress(BlockingIOError):
        while True:
            fill.append(socket.socket(socket.AF_UNIX))
            fill[-1].setblocking(False)
            fill[-1].connect(str(directory / "s"))

    def serve():
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            while True:
                end = made.accept()[0]
                fill.append(end)
                if data := end.recv(4_096):
                    end.sendall(frame([1, 1, *ALLOW, *[None] * 4]) if b"\x95\x03\x01" in data or data else b"")

    for one in fill[:-1]:
        one.shutdown(socket.SHUT_RDWR)  # so that the client reads the end immediately
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert make_client(timeout=PATIENT).hit("api").reason is None

    async def ask():
        ac = tidegate.AsyncClient(str(directory / "s"), timeout=PATIENT)
        reason = (await ac.hit("api")).reason
        ac.close()
        return reason

    assert asyncio.run(ask()) is None
    made.shutdown(socket.SHUT_RDWR)
    for one in (*fill, made):
        one.close()


@pytest.mark.parametrize("closed_before_writing", [False, True])
def test_threads_share_the_accepted_connections(played, make_client, monkeypatch, closed_before_writing):
    """The daemon accepts one connection; the seven other threads get `busy`, wait for it, and all get decisions."""
    played.most, client, start, got = 1, make_client(), threading.Barrier(8), []
    if closed_before_writing:
        make = tidegate.connection.connect

        def connect(*arguments):
            made = make(*arguments)
            if played.served:
                (poll := select.poll()).register(made, select.POLLHUP)
                poll.poll(50)  # until a full daemon has closed it
            return made

        monkeypatch.setattr(tidegate.connection, "connect", connect)
    played.script = lambda connection, message: time.sleep(0.005) or [1, message[1], *ALLOW]

    def ask():
        start.wait()
        got.extend(client.acquire("api").reason for _ in range(3))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [None] * 24 and played.refused > 0
    assert client._report == {} and client.stats()["missed"] == {}


def test_tasks_wait_for_room_for_a_connection(played):
    """`busy` is no decision: the tasks of a loop retry until their deadline, then count as one failure, also
    if they began one after another, since their waits overlap."""
    played.most = 0

    async def ask():
        ac = tidegate.AsyncClient(played.path, timeout=0.3)

        async def late(number):
            for _ in range(number):
                await asyncio.sleep(0)
            return await ac.acquire("api")

        assert reasons(await asyncio.gather(*map(late, range(8)))) == ["protocol"] * 8
        assert ac._core._failures == 1 and "abandoned" not in ac._core._report
        ac._core._timeout = PATIENT
        tasks = [asyncio.create_task(ac.acquire("api")) for _ in range(8)]
        before = played.refused
        while played.refused == before:
            await asyncio.sleep(0.001)
        played.most = 1
        assert reasons(await asyncio.gather(*tasks)) == [None] * 8
        ac.close()

    asyncio.run(ask())


@pytest.mark.parametrize("written", [False, True])
def test_a_busy_loop_does_not_shorten_the_daemons_time(played, written):
    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=0.5)
        while not await ac.check():
            pass
        played.script = lambda connection, message: (time.sleep(0.03), [1, message[1], *ALLOW])[1]
        asked = asyncio.ensure_future(ac.hit("api"))
        await asyncio.sleep(0)  # the request is queued
        while written and not played.of(3):
            await asyncio.sleep(0)
        time.sleep(0.6)
        reason = (await asked).reason
        ac.close()
        return reason, ac.stats()["missed"]

    assert asyncio.run(main()) == (None, {})


def test_a_cancelled_caller_is_no_failure(played):
    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=PATIENT)
        await ac.check()
        played.script = lambda connection, message: None
        for _ in range(10):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ac.hit("api"), 0.01)
        assert (ac._core._failures, ac.stats()["missed"]) == (0, {})
        ac.close()

    asyncio.run(main())


def test_queued_requests_wait_for_their_turn(played, monkeypatch):
    monkeypatch.setattr(tidegate.pipe, "IN_FLIGHT_MAX", 1)

    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=0.5)
        played.script = lambda connection, message: (time.sleep(0.15), [1, message[1], *ALLOW])[1]
        assert reasons(await asyncio.gather(*(ac.hit("api") for _ in range(5)))) == [None] * 5
        stats = ac.stats()
        ac.close()
        return stats["connections"], stats["breaker_open"], ac._core._failures

    assert asyncio.run(main()) == (1, False, 0)


def test_in_asyncio_a_probe_is_a_ping(played, long_pauses):
    async def main():
        ac = tidegate.AsyncClient(played.path, timeout=0.1)
        played.silent = True
        assert reasons([await ac.hit("api") for _ in range(4)]) == ["timeout"] * 3 + ["breaker"]
        ac._core._until = time.monotonic()
        assert reasons(await asyncio.gather(*(ac.acquire("api") for _ in range(9)))).count("breaker") == 8
        wait_until(lambda: len(played.of(8)) == 1)
        assert played.of(1) == []
        played.silent, ac._core._until, ac._core._timeout = False, time.monotonic(), PATIENT
        assert reasons([await ac.acquire("api") for _ in range(3)]) == [None] * 3
        ac.close()

    asyncio.run(main())


def test_uses_a_returned_daemon_soon(directory, make_client):
    client = make_client()
    assert client.hit("api").reason == "unreachable" and client.stats()["breaker_open"]
    made, began = Played(str(directory / "s")), time.monotonic()
    while client.hit("api").degraded:
        assert time.monotonic() < began + PATIENT
        time.sleep(0.001)
    assert client._pause == 0
    made.stop()
