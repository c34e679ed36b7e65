"""nginx, Caddy and Envoy as docs configure them, before an application and under load, while the daemon is killed."""

import collections
import concurrent.futures
import contextlib
import http.client
import http.server
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

from servers import OWN_GROUP, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / "docs" / page).read_text() for name, page in {
    "nginx": "http.md", "caddy": "http.md", "envoy": "envoy.md",
}.items()}  # fmt: skip
LANGUAGES = {"envoy": "yaml"}
MADE = ROOT / "target/proxies"
BURST = 20
RULES = f"""
domain: web
deny: [{{name: blocked, match: {{remote_address: 127.0.0.3}}}}]
exempt: [{{name: ours, match: {{remote_address: 127.0.0.5}}}}]
limits: [{{name: per-ip, key: [remote_address], rate: 1/h, burst: {BURST}}}]
"""


class Application(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"app")

    def log_message(self, *_):
        pass


class Backlog(http.server.ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def application():
    server = Backlog(("127.0.0.1", 0), Application)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port, source="127.0.0.1"):
    """One request, from an address of loopback: the status and the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(source, 0))
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"X-Real-IP": "10.0.0.1"})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers


@contextlib.contextmanager
def proxy(name, directory, application):
    """Runs the proxy with the page's configuration, and yields its port."""
    program = shutil.which(name, path=os.pathsep.join([str(MADE), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"missing: {name} (scripts/setup proxies)")
    port = free_port()
    [text, *_] = re.findall(rf"^```{LANGUAGES.get(name, name)}\n(.*?)^```$", PAGES[name], re.M | re.S)
    text = text.replace("/run/tidegate/", f"{directory}/")
    text = re.sub(r"\b8080\b", f"127.0.0.1:{port}" if name == "nginx" else str(port), text)
    text = re.sub(r"\b8000\b", str(application), text)
    # A busy machine must not decide the test.
    text = text.replace("100ms", "2s").replace("timeout: 0.05s", "timeout: 1s")
    configuration = directory / (f"{name}.yaml" if name == "envoy" else f"{name}.conf")
    if name == "nginx":
        user = "user root;" if os.geteuid() == 0 else ""
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = " ".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
        text = f"{user} daemon off; pid {directory}/pid; events {{}} http {{ access_log off; {places}\n{text}}}"
        command = [program, "-c", str(configuration), "-e", str(directory / "nginx.log")]
    elif name == "envoy":
        command = [program, "-c", str(configuration), "--concurrency", "2", "--disable-hot-restart", "-l", "warning"]
    else:
        text = "{\n admin off\n auto_https off\n}\n" + text
        command = [program, "run", "--adapter", "caddyfile", "--config", str(configuration)]
    configuration.write_text(text)
    environment = os.environ | {"HOME": str(directory)}
    with open(directory / "proxy.log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, **OWN_GROUP)
    try:
        until = time.monotonic() + 20
        while True:
            assert process.poll() is None and time.monotonic() < until, (directory / "proxy.log").read_text()
            with contextlib.suppress(OSError):
                get(port, "127.0.0.9")
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["nginx", "caddy", "envoy"])
def test_proxy_limits_and_lets_requests_pass_while_the_daemon_is_down(
    name, daemon, directory, application, monkeypatch
):
    monkeypatch.setenv("TIDEGATE_DEBUG_PATIENT", "1")
    settings = directory / "settings.yaml"
    auth = "auth: {domain: web, attributes: {remote_address: X-Real-IP}}"
    http_socket, envoy = f"{{socket: {directory}/http.sock, {auth}}}", f"{{socket: {directory}/envoy.sock}}"
    settings.write_text(f"adapters: {{http: {http_socket}, envoy: {envoy}}}\n")
    (daemon.rules / "web.yaml").write_text(RULES)
    daemon.options = ["--config", str(settings)]
    daemon.start()
    with proxy(name, directory, application) as port:
        # The proxy names the address, whatever its client claims.
        statuses = collections.Counter(get(port, "127.0.0.2")[0] for _ in range(BURST + 5))
        assert statuses == {200: BURST, 429: 5}
        status, headers = get(port, "127.0.0.2")
        assert (status, headers["RateLimit"]) == (429, '"per-ip";r=0;t=' + headers["Retry-After"])
        assert headers["RateLimit-Policy"].startswith('"per-ip";q=20;w=') and 0 < int(headers["Retry-After"]) <= 3600
        assert get(port, "127.0.0.3")[0] == 403
        if name == "envoy":
            assert headers["Content-Type"] == "application/problem+json", headers
        status, headers = get(port, "127.0.0.4")
        assert status == 200 and headers["RateLimit"].startswith('"per-ip";r=19;t=')
        assert headers["RateLimit-Policy"].startswith('"per-ip";q=20;w=')
        status, headers = get(port, "127.0.0.5")
        assert status == 200 and "RateLimit" not in headers and "RateLimit-Policy" not in headers
        stop, results = threading.Event(), []

        def ask(number):
            while not stop.is_set():
                started = time.monotonic()
                status, _ = get(port, f"127.0.1.{number}")
                results.append((status, time.monotonic() - started))

        def asked(count, since):
            """Waits for further requests and returns their statuses."""
            until = time.monotonic() + 60
            while len(results) < since + count:
                assert time.monotonic() < until, len(results)
                time.sleep(0.01)
            return collections.Counter(status for status, _ in results[since:])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            try:
                callers = [pool.submit(ask, number) for number in range(1, 9)]
                assert asked(1_000, 0)[200] == 8 * BURST
                daemon.stop(kill=True)
                since = len(results) + 8  # those in flight may have been judged before
                assert asked(1_000, since) == {200: len(results) - since}, "every request passes"
                daemon.start()
                since = len(results)
                assert asked(1_000, since)[429] > 500, "limited again"
                daemon.process.send_signal(signal.SIGSTOP)
                since = len(results) + 16
                stalled = asked(50, since)
                daemon.process.send_signal(signal.SIGCONT)
                assert set(stalled) == {200}, stalled
            finally:
                stop.set()
            for caller in callers:
                caller.result()
        statuses = collections.Counter(status for status, _ in results)
        assert set(statuses) == {200, 429}, statuses
        print(f"{name}: {dict(statuses)}, longest {max(took for _, took in results):.3f} s")
