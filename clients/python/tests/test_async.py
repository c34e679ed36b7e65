"""AsyncClient: the promises of `Client`, for many tasks on one connection; cancelled tasks leave no lease."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
import time

import pytest
from daemons import ALLOW, LIMIT, PATIENT, Played, frame
from test_client import fork_past_python, in_child

import tidegate
from tidegate import HIT, pipe

RULES = "domain: api\nconcurrency: [{name: at-once, key: [], max: 50, expires: 1h}]\n"


@pytest.fixture
def make_async(directory, make_client):  # make_client, because it clears the environment
    made = []

    def make(**options):
        options = {"socket": str(directory / "s"), "timeout": PATIENT} | options
        made.append(tidegate.AsyncClient(**options))
        return made[-1]

    yield make
    for ac in made:
        ac.close()


@pytest.fixture
def ac(make_async):
    return make_async()


def grant(connection, message):
    return [1, message[1], *ALLOW, 76 + message[1]] if message[0] == 1 else [2, message[1], True]


async def hits(ac, count=1, **options):
    return [(await ac.hit("api", {"user": "u1"}, **options)).reason for _ in range(count)]


async def until(true):
    end = time.monotonic() + PATIENT
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


# -- asking ------------------------------------------------------------------------------------------------------------


def test_sends_the_request_and_reads_the_reply(played, ac):
    async def main():
        decision = await ac.acquire("api", {"user": "u1"})
        assert (decision.rule, decision.remaining, decision.degraded, bool(decision)) == ("per-user", 39, False, True)
        assert (await ac.peek("api", {"user": "u1"}, cost=3, priority="post", queued=0.5)).limit == 40
        assert await ac.charge("api", {"user": "u1"}, {"tokens": 5}) and await ac.check()
        ac.signal("lag", 0.5)
        return await hits(ac)

    played.script = lambda connection, message: [2, message[1], True] if message[0] == 5 else [1, message[1], *ALLOW]
    assert asyncio.run(main()) == [None]
    assert [message[:2] for message in played.seen] == [[0, 0], [1, 1], [4, 2], [5, 3], [8, 4], [7, None], [3, 5]]
    assert played.seen[2][2:] == ["api", [["user", "u1"]], 3, "post", {"queued_us": 500_000}]


def test_is_loaded_on_first_use():
    assert tidegate.AsyncClient.__name__ == "AsyncClient"
    with pytest.raises(AttributeError):
        _ = tidegate.Nonsense


def test_tasks_share_a_connection_but_no_reply(played, ac):
    """Replies arrive in another order than the requests."""
    held = []

    def turned(connection, message):
        held.append([1, message[1], 0, message[3][0][1], 40, 2, message[4], 0, 0, None, None, None, None])
        if len(held) < 20:
            return None
        replies = b"".join(frame(reply) for reply in reversed(held))
        held.clear()
        return replies

    played.script = turned

    async def ask(i):
        decision = await ac.hit("api", {"user": f"u{i}"}, cost=i)
        return decision.rule, decision.remaining

    async def main():
        return await asyncio.gather(*(ask(i) for i in range(200)))

    assert asyncio.run(main()) == [(f"u{i}", i) for i in range(200)]
    assert len([message for message in played.seen if message[0] == 0]) == 1


def test_requests_in_flight_are_bounded(played, ac, monkeypatch):
    monkeypatch.setattr(pipe, "IN_FLIGHT_MAX", 8)
    held = []
    played.script = lambda connection, message: held.append((connection, message))

    async def main():
        asked = [asyncio.ensure_future(ac.hit("api")) for _ in range(30)]
        await until(lambda: len(held) == 8)
        await asyncio.sleep(0.02)
        assert len(held) == 8
        played.script = lambda connection, message: [1, message[1], *ALLOW]
        for connection, message in held:
            connection.sendall(frame([1, message[1], *ALLOW]))
        assert [decision.reason for decision in await asyncio.gather(*asked)] == [None] * 30
        monkeypatch.setattr(pipe, "WAITING_MAX", 0)
        assert (await ac.hit("api")).reason == "timeout"

    asyncio.run(main())


def test_replies_in_the_socket_of_a_late_loop_count(played, ac):
    held = []
    played.script = lambda connection, message: held.append((connection, message[1]))

    async def main():
        asked = [asyncio.ensure_future(ac.hit("api")) for _ in range(100)]
        await until(lambda: len(held) == 100)
        help = {"help": "https://example.com/" + 1_000 * "x"}  # in all more than one read
        held[0][0].sendall(b"".join(frame([1, number, *ALLOW, None, None, None, help]) for _, number in held))
        pipe = ac._core.pipe(asyncio.get_running_loop())
        for waiting in pipe.waiting.values():
            waiting.deadline = 0.0
        pipe._expire()
        assert [decision.reason for decision in await asyncio.gather(*asked)] == [None] * 100

    asyncio.run(main())


def test_every_loop_has_a_connection_of_its_own(played, ac):
    got = []
    threads = [threading.Thread(target=lambda: got.extend(asyncio.run(hits(ac, 20)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [None] * 60
    assert asyncio.run(hits(ac)) == [None]
    hellos = [message[3] for message in played.seen if message[0] == 0]
    assert sorted(hello["connection"] for hello in hellos) == [1, 2, 3, 4]
    assert len({hello["session"] for hello in hellos}) == 1
    assert ac.stats()["connections"] == 1  # and those of closed loops


# -- without the daemon ------------------------------------------------------------------------------------------------


def test_many_timeouts_count_once(played, make_async, long_pauses):
    ac = make_async(timeout=0.1)
    played.script = lambda connection, message: None

    async def main():
        got = await asyncio.gather(*(ac.hit("api") for _ in range(50)))
        assert {decision.reason for decision in got} == {"timeout"} and not ac.stats()["breaker_open"]
        for _ in range(2):
            await hits(ac)
        assert ac.stats()["breaker_open"] and await hits(ac, 3) == ["breaker"] * 3

    asyncio.run(main())


def test_no_daemon_then_one(directory, make_async, caplog, long_pauses):
    ac = make_async()
    assert asyncio.run(hits(ac, 4)) == ["unreachable"] + ["breaker"] * 3
    assert len(caplog.messages) == 1 and "no daemon at" in caplog.text
    made = Played(str(directory / "s"))
    ac._core._until = 0.001
    assert asyncio.run(hits(ac, 2)) == [None, None] and "answers again" in caplog.text
    made.stop()


@pytest.mark.parametrize("goodbye", [True, False])
def test_an_orderly_restart_loses_no_decision(played, ac, goodbye):
    async def main():
        await hits(ac)
        if goodbye:
            played.connections[0].sendall(frame([4, None, "draining"]))
        played.hang_up()
        return [decision.reason for decision in await asyncio.gather(*(ac.hit("api") for _ in range(10)))]

    assert asyncio.run(main()) == [None] * 10 and ac.stats()["missed"] == {}


def test_a_hangup_without_welcome_is_not_retried_forever(make_async, monkeypatch):
    made = []

    def connected(path):
        made.append(socket.socketpair())
        made[-1][1].close()  # before the first byte could be written
        return made[-1][0]

    monkeypatch.setattr(pipe, "connect", connected)
    assert asyncio.run(hits(make_async())) == ["unreachable"] and len(made) == 1


def test_disabled(played, make_async):
    ac = make_async(enabled=False)

    async def main():
        assert await hits(ac, on_failure="refuse") == ["disabled"] and not await ac.check()
        async with ac.limit("api") as decision:
            assert not await decision.renew()

    asyncio.run(main())
    assert played.seen == []


def test_an_unreadable_request_is_refused(played, ac, caplog):
    async def main():
        return [(await ac.acquire(domain)).reason for domain in ("a/b", None, "a/b")]

    assert asyncio.run(main()) == ["invalid"] * 3 and played.seen == []


# -- leases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "outcome"), [(None, 0), (RuntimeError, 2), (asyncio.CancelledError, 2)])
def test_limit(played, ac, error, outcome):
    played.script = grant

    async def main():
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            async with ac.limit("export", {"org": "o1"}) as decision:
                assert decision.lease == 77 and await decision.renew()
                if error:
                    raise error
        await ac.check()
        played.script = lambda connection, message: [1, message[1], *LIMIT]
        with pytest.raises(tidegate.Denied):
            async with ac.limit("export"):
                raise AssertionError("the block ran")

    asyncio.run(main())
    assert played.releases() == [[77, outcome]]


def test_a_wait_does_not_block_the_loop(played, ac):
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000, 77]

    async def main():
        started = time.monotonic()

        async def held():
            async with ac.limit("hooks"):
                return time.monotonic() - started

        took = await asyncio.gather(*(held() for _ in range(20)))
        assert min(took) >= 0.25 and max(took) < 20 * 0.25

    asyncio.run(main())


def test_a_cancelled_task_releases_its_late_grant(played, ac):
    held = []
    played.script = lambda connection, message: held.append((connection, message))

    async def main():
        asked = asyncio.ensure_future(ac.acquire("export"))
        await until(lambda: held)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        connection, message = held[0]
        connection.sendall(frame([1, message[1], *ALLOW, 99, None, None, None]))
        await until(lambda: [m[2:] for m in played.seen if m[0] == 2] == [[99, 2]])
        played.script = lambda connection, message: [1, message[1], *ALLOW]
        await ac.hit("api")

    asyncio.run(main())
    assert played.of(HIT)[-1][6] == {"abandoned": [[1, 1]]} and ac.stats()["missed"] == {}


def test_a_task_cancelled_after_its_grant_releases_it(played, ac, monkeypatch):
    played.script = grant
    answered = pipe.Pipe._finish

    async def main():
        await ac.check()
        asked = asyncio.ensure_future(ac.acquire("export"))
        monkeypatch.setattr(pipe.Pipe, "_finish", lambda *given: (answered(*given), asked.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await asked
        monkeypatch.setattr(pipe.Pipe, "_finish", answered)
        await ac.check()

    asyncio.run(main())
    assert [lease for lease, outcome in played.releases()] == [78]


def test_a_release_on_a_closed_connection_takes_another(played, ac):
    played.script = grant

    async def main():
        decision = await ac.acquire("export")
        played.hang_up()
        await asyncio.sleep(0.02)
        decision.release("error")
        decision.release()
        await ac.check()

    asyncio.run(main())
    assert played.releases() == [[77, 1]]


def test_a_release_without_loop_or_daemon_is_reported_later(played, ac):
    played.script = grant

    async def main():
        return await ac.acquire("export")

    asyncio.run(main()).release()
    asyncio.run(hits(ac))
    assert played.of(HIT)[-1][6] == {"abandoned": [[1, 1]]}


def test_hundreds_of_cancelled_tasks_leave_no_lease(daemon, make_async, make_client):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    ac = make_async(socket=daemon.socket)

    async def work(i):
        async with ac.limit("api", {"user": f"u{i}"}):
            await asyncio.sleep(0.001 * (i % 7))

    async def main():
        for _ in range(10):
            tasks = [asyncio.ensure_future(work(i)) for i in range(40)]
            for i, task in enumerate(tasks):
                if i % 3 == 0:
                    await asyncio.sleep(0.0003 * (i % 4))
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await ac.check()
        await until(lambda: asking.peek("api").remaining == 50)

    asking = make_client(socket=daemon.socket)
    asyncio.run(main())
    assert ac.stats()["missed"] == {}


# -- decorated ---------------------------------------------------------------------------------------------------------


def test_limited_functions_and_generators(played, ac):
    played.script = grant

    @ac.limited("export", lambda org: {"org": org}, priority=lambda org: "critical")
    async def report(org):
        """Reports."""
        return org

    @ac.limited("export")
    def plain():
        return 7

    @ac.limited("export")
    def rows():
        yield from (1, 2)

    @ac.limited("export")
    async def rows_async():
        got = yield 1
        try:
            yield got
        except LookupError:
            yield "caught"

    async def main():
        assert await report("o1") == "o1" and await plain() == 7
        assert [row async for row in rows()] == [1, 2]
        running = rows_async()
        assert [await running.asend(None), await running.asend("sent")] == [1, "sent"]
        assert await running.athrow(LookupError) == "caught"
        with pytest.raises(StopAsyncIteration):
            await anext(running)
        early = rows_async()
        await anext(early)
        await early.aclose()
        await ac.check()

    asyncio.run(main())
    assert report.__doc__ == "Reports." and asyncio.iscoroutinefunction(report)
    assert played.seen[1][2:] == ["export", [["org", "o1"]], 1, "critical"]
    assert [outcome for _, outcome in played.releases(5)] == [0, 0, 0, 0, 2]


def test_a_function_of_the_arguments_that_raises_lets_the_call_pass(played, ac, caplog):
    @ac.limited("export", lambda name: {"account": name.missing}, on_failure="refuse")
    async def login(name):
        return name

    assert asyncio.run(login("ann")) == "ann" and ac.stats()["missed"] == {"callback": 1}
    assert "ann" not in caplog.text


# -- forks, and dropped clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", [os.fork, fork_past_python])
def test_a_child_has_its_own_connection_and_session(played, ac, fork):
    async def main():
        assert await hits(ac, 2) == [None, None]
        assert in_child(child, fork)
        return await hits(ac, 2)

    def child():
        asyncio._set_running_loop(None)  # the child has its parent's loop on its stack, and runs another
        return asyncio.run(hits(ac, 2)) == [None, None]

    assert asyncio.run(main()) == [None, None]
    first, second = [message[3] for message in played.seen if message[0] == 0]
    assert first["session"] != second["session"] and (first["pid"], second["connection"]) == (os.getpid(), 1)
    assert [message[1] for message in played.requests()] == [1, 2, 1, 2, 3, 4]


def test_closed_loops_are_dropped(played, ac):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert asyncio.run(hits(ac)) == [None]
    gc.collect()
    assert len(ac._core._pipes) == 1 and len(os.listdir("/proc/self/fd")) <= before + 25  # 20 of the daemon


def test_async_with_closes(played, make_async):
    async def main():
        async with make_async() as ac:
            await ac.hit("api")
        assert ac.stats()["connections"] == 0
        assert await hits(ac) == [None]  # the client may be used again
        ac.close()

    asyncio.run(main())


def test_a_hundred_tasks_are_at_least_twice_as_fast_as_one(daemon, make_async):
    """On one connection, in one process: a ratio of one run, the best of five, since machines are busy."""
    (daemon.rules / "api.yaml").write_text("domain: api\nlimits: [{name: r, key: [user], rate: 900/s, burst: 90000}]\n")
    daemon.start()
    ac = make_async(socket=daemon.socket)

    async def rate(tasks, calls):
        async def ask():
            for _ in range(calls // tasks):
                await ac.hit("api", {"user": "u1"})

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(tasks)))
        return calls / (time.perf_counter() - started)

    async def main():
        return [await rate(100, 3_000) / await rate(1, 1_000) for _ in range(5)]

    ratios = asyncio.run(main())
    assert ac.stats()["missed"] == {} and max(ratios) >= 2, ratios
