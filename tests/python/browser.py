"""A headless Chromium, driven over a pipe by its own protocol, without a driver or a port."""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENT = 60.0  # browsers start slowly on a busy machine


class Browser:
    """One page of one browser. `complaints` has its errors and warnings, `requests` all its responses."""

    def __init__(self):
        self.home = tempfile.TemporaryDirectory(prefix="tidegate-chromium-")
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        # As root it runs without its sandbox; it opens only pages of this daemon.
        options = [
            "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-dev-shm-usage", "--disable-extensions",
            f"--user-data-dir={self.home.name}", *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        log = open(os.path.join(self.home.name, "log"), "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", CHROMIUM, *options],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=os.environ | {"HOME": self.home.name, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
        )  # fmt: skip
        for ours in (theirs_in, theirs_out):
            os.close(ours)
        log.close()
        self.last, self.data, self.session = 0, b"", None
        self.complaints, self.requests, self.loads = [], [], 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.last += 1
        number = self.last
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + PATIENT
        while True:
            answer = self._next(limit - time.monotonic())
            assert answer, f"{method}: no answer\n{(pathlib.Path(self.home.name) / 'log').read_text()[-2000:]}"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]

    def listen(self, seconds):
        """Records events."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            self._next(left)

    def _next(self, seconds):
        while b"\0" not in self.data:
            if not select.select([self.back], [], [], max(seconds, 0))[0]:
                return None
            piece = os.read(self.back, 1 << 20)
            assert piece, "the browser has ended"
            self.data += piece
        message, self.data = self.data.split(b"\0", 1)
        message = json.loads(message)
        self._record(message.get("method"), message.get("params", {}))
        return message

    def _record(self, event, details):
        if event == "Page.loadEventFired":
            self.loads += 1
        elif event == "Network.responseReceived":
            self.requests.append((details["response"]["url"], details["response"]["status"]))
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.complaints.append(details["entry"]["text"])

    def open(self, url):
        loads = self.loads
        assert "errorText" not in self.call("Page.navigate", url=url)
        self.until("it has loaded", lambda: self.loads > loads)

    def until(self, what, holds, seconds=PATIENT):
        limit = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < limit, f"{what}: {self.complaints}"
            self.listen(0.05)
        return found

    def get(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def look(self, width, height=900, dark=False):
        """Sets the width of the window and the preferred colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path, height=None):
        """Takes a picture of the page from its top, in full or up to a height."""
        height = height or self.get("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.get("innerWidth"), "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self.session = None
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        with contextlib.suppress(OSError):
            self.home.cleanup()
