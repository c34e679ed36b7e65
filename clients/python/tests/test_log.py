"""The lines that a client logs: causes, consequences, and help; never a value of an attribute."""

import asyncio
import os
import pathlib
import pwd
import socket

import pytest
from daemons import PATIENT, Played

import tidegate
import tidegate.connect_error  # while this user may read it
import tidegate.log_texts


@pytest.mark.parametrize(("at", "mode"), [("folder", 0o700), ("folder/s", 0o600)])
def test_permission_denied_names_what_the_group_may_not_use(directory, make_client, caplog, at, mode):
    """A child of another user, since root may open everything."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    (directory / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "folder/s"))
        listener.listen()
        (directory / "folder").chmod(0o755)
        (directory / at).chmod(mode)
        directory.chmod(0o755)
        client = make_client(socket=str(directory / "folder/s"))
        os.seteuid(65534)
        try:
            client.hit("api", {"user": "u1"})
        finally:
            os.seteuid(0)
    name = pwd.getpwuid(65534).pw_name
    cause = f"{directory / at} has mode {mode:04o}, without access for its group; see `tidegate doctor --as {name}`"
    denied = f"tidegate: permission denied on {directory}/folder/s: "
    assert caplog.messages == [f"{denied}{cause}; requests are not limited"]


@pytest.mark.parametrize("make", [pathlib.Path.touch, pathlib.Path.mkdir])
def test_a_path_that_is_no_socket_is_named(directory, make_client, caplog, make):
    make(directory / "s")
    make_client().hit("api", {"user": "u1"})
    assert caplog.messages[0].startswith(f"tidegate: {directory}/s is no socket: set TIDEGATE_SOCKET")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_admin_socket_is_recognized(played, make_client, caplog, asynchronous):
    played.silent = True  # no WELCOME

    async def ask():
        await tidegate.AsyncClient(played.path, timeout=PATIENT).hit("api")

    played.hears = lambda message: [one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n") for one in played.connections]
    asyncio.run(ask()) if asynchronous else make_client().hit("api", {"user": "u1"})
    assert "that is the admin socket" in caplog.messages[0]


def test_the_log_says_what_on_failure_does(make_client, caplog):
    assert make_client(socket="/nowhere").hit("api", on_failure="refuse").status == 503
    assert caplog.messages[0].endswith("; requests with on_failure refuse get status 503, others are not limited")


def test_one_request_without_the_daemon_is_singular(directory, make_client, caplog, monkeypatch):
    monkeypatch.setattr(tidegate, "PAUSE_MIN", 0.0)
    client = make_client()
    client.hit("api")
    made = Played(str(directory / "s"))
    client.hit("api")
    made.stop()
    assert caplog.messages[1].endswith("answers again; 1 request so far decided without it")
