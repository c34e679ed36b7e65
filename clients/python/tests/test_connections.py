"""Connections: few stay idle; a request that a GOODBYE left unprocessed is retried once on another connection."""

import asyncio
import socket
import threading

import pytest
from daemons import ALLOW, PATIENT, frame

import tidegate

GOODBYE = frame([4, None, "idle"])


@pytest.fixture
def burst(played, client):
    """A client that has made calls from eight threads at the same time."""
    gate = threading.Barrier(8)
    played.script = lambda connection, message: (gate.wait(PATIENT), [1, message[1], *ALLOW])[1]
    threads = [threading.Thread(target=client.hit, args=("api",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    played.script = lambda connection, message: [1, message[1], *ALLOW]
    assert client.stats()["connections"] == 8
    return client


def test_idle_connections_are_closed_down_to_a_few(burst, monkeypatch):
    for _ in range(20):
        burst.hit("api")
    assert burst.stats()["connections"] == 8  # not yet
    for connection in burst._idle[:-1]:
        connection.used -= tidegate.IDLE_SECONDS + 1
    for left in (7, 6, 5, 4, 3, 2, 2, 2):
        assert not burst.hit("api").degraded and burst.stats()["connections"] == left  # one per call


def test_idle_limits_are_in_range():
    assert 10 <= tidegate.IDLE_SECONDS <= 30 and tidegate.IDLE_KEPT <= 4


@pytest.mark.parametrize("op", ["acquire", "hit", "peek"])
def test_after_a_goodbye_a_request_is_sent_once_more_on_a_new_connection(burst, played, op):
    for connection in played.connections:  # all, including those that the retry could take
        connection.sendall(GOODBYE)
        connection.shutdown(socket.SHUT_RDWR)
    assert getattr(burst, op)("api").reason is None
    assert burst.stats()["missed"] == {} and burst._failures == 0


def test_retries_once_after_goodbyes(played, client):
    def leave(connection, message):
        connection.sendall(GOODBYE)
        connection.shutdown(socket.SHUT_RDWR)

    played.script = leave
    assert client.hit("api").reason == "unreachable" and len(played.of(3)) == 2
    asyncio.run(leaving(played))
    assert len(played.of(3)) == 4


async def leaving(played):
    ac = tidegate.AsyncClient(played.path, timeout=PATIENT)
    assert (await ac.hit("api")).reason == "unreachable"
    ac.close()


def test_after_the_deadline_a_reply_is_read_once(played, client, monkeypatch):
    connection, reads = client._checkout(), []
    monkeypatch.setattr(tidegate.connection, "GRACE", -1.0)
    connection._receive = lambda deadline: reads.append(deadline) or b"\0"
    with pytest.raises(tidegate.Fault, match="did not answer in time"):
        connection._wait(tidegate.protocol.DECISION, 0.0)
    assert reads == [0.0]


def test_an_end_without_a_goodbye_is_a_failure(played, client):
    played.script = lambda connection, message: connection.shutdown(socket.SHUT_RDWR)
    assert client.hit("api").reason == "unreachable" and client._failures == 1 and len(played.of(3)) == 1


def test_a_release_after_a_goodbye_is_reported(played, client):
    """The request was written to a closed connection, perhaps unread."""
    played.script = lambda c, m: [1, m[1], *ALLOW, 77] if m[0] == 1 else [1, m[1], *ALLOW]
    decision = client.acquire("api")
    decision.release()
    played.releases()
    played.connections[0].sendall(GOODBYE)
    played.connections[0].shutdown(socket.SHUT_RDWR)
    assert client.hit("api").reason is None and client.hit("api").reason is None
    assert {"abandoned": [[1, 1]]} in [message[6] for message in played.of(3) if len(message) > 6]
