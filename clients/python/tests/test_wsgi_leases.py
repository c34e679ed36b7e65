"""The middleware: the end of a request's lease, and its queue time."""

import gc
import io
import time
from wsgiref.handlers import SimpleHandler
from wsgiref.util import FileWrapper

import pytest
from test_wsgi import call, grant, plain

from tidegate.http import queued
from tidegate.wsgi import Middleware

# -- the end of the body -----------------------------------------------------------------------------------------------


class Slotted(FileWrapper):
    """Like those of servers written in C: without settable attributes."""

    __slots__ = ()

    def __setattr__(self, name, value):
        if name == "close" and "close" in self.__dict__:
            raise AttributeError(name)
        super().__setattr__(name, value)


def file_app(wrapper, status="200 OK", file=None):
    def app(environ, start_response):
        start_response(status, [("Content-Type", "text/plain")])
        return wrapper(file or io.BytesIO(b"content"))

    return app


@pytest.mark.parametrize(("status", "outcome"), [("200 OK", 0), ("503 Oh", 1)])
def test_a_file_is_not_wrapped_and_releases_on_close(played, client, status, outcome):
    played.script, file = grant, io.BytesIO(b"content")
    body = Middleware(file_app(FileWrapper, status, file), client)({"wsgi.file_wrapper": FileWrapper}, lambda *_: None)
    assert type(body) is FileWrapper and played.releases(0) == []
    body.close()  # after sendfile, which reads no chunk
    assert file.closed and played.releases() == [[77, outcome]]
    body.close()
    assert client.check() and len(played.releases()) == 1


def test_a_file_without_settable_close_is_wrapped(played, client):
    played.script, file = grant, io.BytesIO(b"content")
    body = Middleware(file_app(Slotted, file=file), client)({"wsgi.file_wrapper": Slotted}, lambda *_: None)
    assert b"".join(body) == b"content"
    body.close()
    assert file.closed and played.releases() == [[77, 0]]


def test_a_file_that_cannot_be_closed_ends_its_lease(played, client):
    class Broken(io.BytesIO):
        def close(self):
            super().close()
            raise OSError

    played.script = grant
    app = Middleware(file_app(FileWrapper, file=Broken()), client)
    body = app({"wsgi.file_wrapper": FileWrapper}, lambda *_: None)
    with pytest.raises(OSError):
        body.close()
    assert played.releases() == [[77, 0]]


def test_a_body_that_is_dropped_ends_its_lease(played, client):
    """Like another middleware that does not close the body."""
    played.script = grant
    body = Middleware(plain, client)({}, lambda *_: None)
    assert next(iter(body)) == b"hello" and played.releases(0) == []
    del body
    gc.collect()
    assert played.releases() == [[77, 2]]


@pytest.mark.parametrize("body", [None, 7])
def test_an_invalid_body_is_not_wrapped(played, client, body):
    played.script = grant

    def app(environ, start_response):
        start_response("200 OK", [])
        return body

    with pytest.raises(TypeError):
        Middleware(app, client)({}, lambda *_: None)
    assert played.releases() == [[77, 2]]


def served(app):
    """Returns headers and body as a server that makes Content-Length of a list of one."""
    sent = io.BytesIO()
    environ = {"REQUEST_METHOD": "GET", "SERVER_PROTOCOL": "HTTP/1.0", "wsgi.url_scheme": "http"}
    handler = SimpleHandler(io.BytesIO(), sent, io.StringIO(), environ, multithread=False)
    handler.http_version = "1.1"
    handler.run(app)
    return sorted(line for line in sent.getvalue().split(b"\r\n") if not line.startswith(b"Date"))


@pytest.mark.parametrize("chunks", [[b"hello"], (b"a", b"b"), []])
def test_servers_send_the_same_bytes(played, client, chunks):
    played.script = grant

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return chunks

    assert served(Middleware(app, client, headers="none")) == served(app)
    assert played.releases() == [[77, 0]]


def test_an_interrupt_during_a_wait_releases_the_lease(played, client, monkeypatch):
    def interrupted(seconds):
        raise SystemExit

    monkeypatch.setattr(time, "sleep", interrupted)
    played.script = lambda connection, message: [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000, 77]
    with pytest.raises(SystemExit):
        Middleware(plain, client)({}, lambda *_: None)
    assert len(client._connections()) == 1 and client.check()
    assert [message[2:] for message in played.seen if message[0] == 2] == [[77, 2]]


# -- queue time --------------------------------------------------------------------------------------------------------

NOW = 1_700_000_100.0


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("t=1700000099.5", 0.5),
        ("1700000099.500", 0.5),
        ("t=1700000098", 2.0),
        ("t=1700000099500", 0.5),
        ("1700000099500", 0.5),
        ("t=1700000099500.25", 0.49975),
        ("t=1700000099500000", 0.5),
        (" t=1700000100 ", 0.0),
        ("t=1700000040", 60.0),
        ("t=1700000039.9", None),  # more than 60 s ago
        ("t=1700000100.1", None),  # from the future
        ("t=0", None),
        ("", None),
        ("t=", None),
        ("t=-1", None),
        ("t=nan", None),
        ("t=1e9", None),
        ("t=1700000099.5, t=1700000099.5", None),
        ("t=1_700_000_099", None),
        ("9" * 5_000, None),
        ("t=١٧٠٠٠٠٠٠٩٩", None),
    ],
)
def test_request_start(header, expected):
    waited = queued(header, NOW)
    assert waited == (None if expected is None else pytest.approx(expected, abs=1e-6))


@pytest.mark.parametrize(
    ("peer", "proxies", "believed"),
    [
        ("10.0.0.1", ["10.0.0.0/8"], True),
        ("::ffff:10.0.0.1", ["10.0.0.0/8"], True),
        ("192.0.2.1", ["10.0.0.0/8"], False),
        ("nonsense", ["10.0.0.0/8"], False),
        ("", ["10.0.0.0/8"], True),  # over a Unix socket
        ("", (), False),
        ("10.0.0.1", (), False),
        ("192.0.2.1", 1, True),
        ("192.0.2.1", 0, False),
    ],
)
def test_reads_queue_time_of_trusted_proxies_only(played, client, monkeypatch, peer, proxies, believed):
    monkeypatch.setattr(time, "time", lambda: NOW)
    middleware = Middleware(plain, client, trusted_proxies=proxies)
    call(middleware, validate=False, REMOTE_ADDR=peer, HTTP_X_REQUEST_START="t=1700000099.250")
    options = (played.seen[1] + [None] * 7)[6]
    assert options == ({"queued_us": 750_000} if believed else None)


def test_ignores_impossible_queue_times(played, client, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)
    for header in ("t=1700000100.5", "t=1600000000", "yesterday"):
        call(Middleware(plain, client, trusted_proxies=1), HTTP_X_REQUEST_START=header)
    assert {len(message) for message in played.requests() if message[0] == 1} == {5}
