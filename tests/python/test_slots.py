"""Under gunicorn the client finds the number of concurrent requests of a worker."""

import pytest

from servers import get, gunicorn

APP = """
import os, tidegate

client = tidegate.Client()
client.hit("api")  # when it is preloaded: in the master, which serves no request
later = []

def app(environ, start_response):
    if environ["PATH_INFO"] == "/made-later":
        globals()["client"] = None  # its client had the slots, which the next one gets
        later[:] = [tidegate.Client()]
    if environ["PATH_INFO"] == "/forked":
        read, write = os.pipe()
        if os.fork() == 0:
            child = tidegate.Client()
            os.write(write, str((client or later[0])._info["slots"] + child._info["slots"]).encode())
            os._exit(0)
        os.wait()
        slots = os.read(read, 10)
    else:
        slots = str((client or later[0])._info["slots"]).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(slots)))])
    return [slots]
"""


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["", "preload"])
@pytest.mark.parametrize(("options", "slots"), [(["--worker-class", "sync"], b"1"), (["--threads", "4"], b"4")])
def test_slots(daemon, directory, options, slots, preload):
    daemon.start()
    with gunicorn(daemon, directory, APP, "--workers", "1", *options, *preload) as port:
        assert get(port, "u1")[2] == slots
        assert get(port, "u1", "/forked")[2] == b"0"  # a worker's child serves no requests either
        assert get(port, "u1", "/made-later")[2] == slots
