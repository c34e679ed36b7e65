"""config/prometheus, config/grafana and docs/runbooks.md with a real daemon, Redis and Prometheus: they name only
existing series, each alert is raised when required and not by an idle daemon, and each panel
has data."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
import tidegate
import yaml
from daemons import ROOT, Daemon

from promql import faults, scraped, selectors

ALERTS = ROOT / "config/prometheus/alerts.yaml"
TESTS = sorted((ROOT / "config/prometheus").glob("tests*.yaml"))
RUNBOOKS = ROOT / "docs/runbooks.md"
DASHBOARD = json.loads((ROOT / "config/grafana/tidegate.json").read_text())
GROUPS = yaml.safe_load(ALERTS.read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
# Required series.
MUST = [
    "Down",
    "NoClients",
    "FailOpenRising",
    "ShedActive",
    "FleetReserveActive",
    "RefusedRatioHigh",
    "ShadowWouldRefuse",
    "FleetSyncStale",
    "RulesDiffer",
    "ReloadFailed",
    "LeaseLeak",
    "SwitchOn",
    "RuleNeverFires",
    "TableFull",
]
ROWS = [
    "Traffic and decisions",
    "Refused and would-be refused",
    "Fail open: calls without the daemon",
    "Shedding",
    "Leases and slots",
    "Fleet",
    "Daemon",
]
UNITS = {"short", "reqps", "ops", "percentunit", "s", "bytes"}  # with the names of Grafana
PATIENCE = 60  # against endless waits, on a busy machine

APP = """
domain: app
priorities: [critical, get]
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5, warn_at: 60%, candidate: {rate: 1/h, burst: 1}}
  - {name: trial, key: [user], rate: 1/h, burst: 1, mode: shadow}
  - {name: shared, key: [tenant], rate: 9/s, burst: 200, scope: fleet}
concurrency: [{name: exports, match: {job: export}, key: [user], max: 1, expires: 1h}]
shed:
  - pool: web
    queue_age: {others: 500ms, critical: 2500ms}
    workers: {}
    brake: {}
    fleet: {reserve: 20%, for: critical}
    signals: {load: {use: false, map: [[0%, 0%], [100%, 100%]]}}
"""


# Tests of the shared daemon run in one process; the others run in parallel.
beside_one_daemon = pytest.mark.xdist_group("prometheus")


def tool(name):
    """`name` of Prometheus: installed, or unpacked by scripts/setup."""
    unpacked = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "prometheus" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        pytest.skip(f"{name} is missing: make setup")
    return found


def promtool(*arguments):
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def fetch(address, path, **parameters):
    query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
    with urllib.request.urlopen(f"http://{address}{path}{query}", timeout=20) as answer:
        return answer.read().decode()


def eventually(what, look):
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until, what
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def running(command, log):
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    # It contains sockets, so its path must be short.
    path = pathlib.Path(f"/tmp/tg-{os.getpid()}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def host(place):
    """A daemon with every kind of rule and a Redis, without requests so far; yields its address for scrapes."""
    redis = shutil.which("redis-server") or pytest.skip("redis-server is missing: scripts/setup test")
    (place / "secret").write_bytes(os.urandom(32))
    (place / "secret").chmod(0o600)
    (place / "state").mkdir()
    settings = {
        "metrics": {"listen": "127.0.0.1:0"},
        "redis": {"url": f"unix://{place}/redis.sock", "fleet_secret_files": [str(place / "secret")]},
        "state": str(place / "state"),
    }
    (place / "tidegate.yaml").write_text(json.dumps(settings))
    command = [redis, "--port", "0", "--unixsocket", place / "redis.sock", "--save", "", "--dir", place]
    with running(list(map(str, command)), place / "redis.log"):
        eventually("Redis listens", (place / "redis.sock").exists)
        binary = pathlib.Path(os.environ.get("TIDEGATE_BIN", ROOT / "target/debug/tidegate"))
        daemon = Daemon(binary, place)
        daemon.options = ["--config", str(place / "tidegate.yaml")]
        (daemon.rules / "app.yaml").write_text(APP)
        try:
            daemon.start()
            pattern = r"metrics are served address=(\S+)"
            daemon.metrics = eventually("metrics are served", lambda: re.search(pattern, daemon.log.read_text()))[1]
            linked = "tidegate_fleet_linked 1\n"
            eventually("Redis is linked", lambda: linked in fetch(daemon.metrics, "/metrics"))
            yield daemon
        finally:
            daemon.stop(kill=True)


@pytest.fixture(scope="module")
def idle(host):
    """Returns its series then."""
    return fetch(host.metrics, "/metrics")


@pytest.fixture(scope="module")
def known(idle):
    """Returns its series, and the records of alerts.yaml on them."""
    series = scraped(idle)
    for rule in RULES:
        if "record" in rule:
            (source, _), *_ = selectors(rule["expr"])
            dropped = set(re.findall(r"\w+", re.search(r"without \(([^)]*)\)", rule["expr"])[1]))
            series[rule["record"]] = [{k: v for k, v in one.items() if k not in dropped} for one in series[source]]
    return series


def drive(host):
    """Traffic of every kind: granted, refused, shadowed, denied, shed, under a lease."""
    with contextlib.closing(tidegate.Client(host.socket, timeout=5, pool="web", slots=4)) as client:
        for number in range(40):
            client.hit("app", {"user": f"u{number % 3}", "tenant": "t"})
        for attributes in ({"path": "/healthz"}, {"agent": "bot"}, {"colour": "red"}):
            client.hit("app", attributes)
        client.hit("elsewhere", {"user": "u"})
        for _ in range(4):
            client.acquire("app", {"job": "export", "user": "u"}).release()


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries():
    """Returns every query of the dashboard by its panel, with variables replaced."""
    every = {f"{one['title']} {t['refId']}": t["expr"] for one in panels() for t in one["targets"]}
    every |= {one["name"]: one["expr"] for one in DASHBOARD["annotations"]["list"]}
    for where, query in every.items():
        filled = query.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "10s")
        assert "$" not in filled, f"{where}: {query}"
        yield where, filled


def test_finds_queries_of_missing_series():
    served = scraped('a_total{x="1",y="/"} 0\ntidegate_a_total{domain="app",rule="web/fleet",verdict="shed"} 0\n')
    good = 'sum without (domain) (rate(tidegate_a_total{verdict="shed", rule=~".+/fleet", job="{"}[5m])) > 0'
    assert not list(faults(good, served))
    for was, now, fault in [
        ("tidegate_a_", "tidegate_b_", "no metric tidegate_b_total"),
        ("verdict=", "verdicts=", "tidegate_a_total has no label verdicts"),
        ('"shed"', '"sheds"', "no series of tidegate_a_total has verdict=sheds"),
        (".+/fleet", ".+/flet", "no series of tidegate_a_total has rule=~.+/flet"),
        ("(domain)", "(domains)", "nothing here has a label domains"),
    ]:
        assert fault in faults(good.replace(was, now), served)


@beside_one_daemon
def test_series_of_alerts_and_panels_exist(known):
    named = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES] + list(queries())
    wrong = [f"{where}: {fault}" for where, query in named for fault in faults(query, known)]
    assert not wrong, "\n".join(wrong)
    variables = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert variables and all(re.search(r"\w+", one[len("label_values(") :])[0] in known for one in variables)


@beside_one_daemon
def test_names_in_runbooks_exist(known):
    page = RUNBOOKS.read_text()
    for name in re.findall(r"tidegate_\w+", page):
        assert {name, f"{name}_bucket"} & set(known), name
    sections = page.split("\n## ")[1:]
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    assert sorted(section.partition("\n")[0] for section in sections) == sorted(alerts)
    for section in sections:
        parts = re.findall(r"(?:^|\s)\*\*(Impact|Check|Fix)\*\*", section)
        assert parts == ["Impact", "Check", "Fix"], section.partition("\n")[0]


@beside_one_daemon
def test_commands_of_the_runbooks_are_those_of_the_command_line(host):
    page = RUNBOOKS.read_text()
    fenced = re.findall(r"^ *(tidegate .*)$", page, re.M)
    inline = re.findall(r"`(tidegate [^`]*)`", page)
    assert len(fenced) > 20
    helps = {}
    for command in fenced + inline:
        words = command.partition("#")[0].split()
        if words[1] not in helps:
            asked = subprocess.run([host.binary, words[1], "--help"], capture_output=True, text=True, timeout=20)
            assert asked.returncode == 0, command
            helps[words[1]] = asked.stdout
        for option in (word for word in words[2:] if word.startswith("--")):
            assert option in helps[words[1]], command


def test_each_alert_has_severity_and_runbook():
    alerts = [rule for rule in RULES if "alert" in rule]
    assert {f"Tidegate{name}" for name in MUST} <= {rule["alert"] for rule in alerts}
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        texts = rule["annotations"]
        assert set(texts) == {"summary", "description", "runbook_url"}
        assert texts["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        # The alert names the host, if it can.
        is_everywhere = "without (instance" in rule["expr"] or "job_domain" in rule["expr"]
        assert is_everywhere or "labels.instance" in texts["summary"], rule["alert"]
    # The command shown in the file turns them into addresses.
    line = next(line for line in ALERTS.read_text().splitlines() if line.startswith("#   sed -i"))
    command = line[1:].replace(" -i", "").replace("alerts.yaml", str(ALERTS))
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    addresses = re.findall(r"^ +runbook_url: (.*)", shown, re.M)
    assert len(addresses) == len(alerts)
    assert all(address.startswith("https://git.example.com/tidegate/docs/runbooks.md#") for address in addresses)


def test_the_examples_are_good():
    promtool("check", "rules", ALERTS)
    promtool("check", "config", ROOT / "config/prometheus/prometheus.yaml")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_are_raised_when_required(path):
    promtool("test", "rules", path)


def test_each_alert_has_a_positive_and_a_negative_test():
    groups = [group for path in TESTS for group in yaml.safe_load(path.read_text())["tests"]]
    for alert in {rule["alert"] for rule in RULES if "alert" in rule}:
        cases = [case for group in groups for case in group["alert_rule_test"] if case["alertname"] == alert]
        assert any(case["exp_alerts"] for case in cases), f"{alert} never comes"
        assert any(not case["exp_alerts"] for case in cases), f"{alert} always comes"


@beside_one_daemon
def test_an_idle_daemon_raises_no_alert(idle, place):
    """From its start on, for two hours with constant metrics."""
    target = 'job="tidegate", instance="idle"'
    values = [(f"up{{{target}}}", "1")]
    for line in idle.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            values.append((f"{name}{{{target}, {labels or '}'}".replace(", }", "}"), value))
    assert len(values) > 300
    steps = 48  # of 150 s: evaluated every five minutes
    alerts = sorted({rule["alert"] for rule in RULES if "alert" in rule})
    test = {
        "interval": "150s",
        "input_series": [{"series": series, "values": f"{value}x{steps}"} for series, value in values],
        "alert_rule_test": [
            {"eval_time": f"{at}m", "alertname": alert, "exp_alerts": []} for alert in alerts for at in (10, 120)
        ],
    }
    path = place / "idle.yaml"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": [test]}))
    promtool("test", "rules", path)
    # The same file with a switch on: the alert is raised.
    switched = path.read_text().replace(
        'reach=\\"everything\\"}", "values": "0x', 'reach=\\"everything\\"}", "values": "1x'
    )
    path.write_text(switched)
    with pytest.raises(AssertionError, match="TidegateSwitchOn"):
        promtool("test", "rules", path)


@beside_one_daemon
def test_switches_are_counted_by_source(host, place, idle):
    def switches():
        series = re.findall(r'tidegate_switches{by="(\w+)",reach="(\w+)"} (\d+)', fetch(host.metrics, "/metrics"))
        return {f"{by} {reach}": int(count) for by, reach, count in series if count != "0"}

    def switch(*words):
        subprocess.run(
            [host.binary, "switch", "--socket", host.socket, *words], check=True, capture_output=True, timeout=60
        )

    assert not switches() and idle.count("tidegate_switches{") == 6
    switch("per-user", "shadow")
    switch("trial", "disabled", "--for", "1h")
    switch("web/brake", "shadow", "--fleet")
    switch("--all", "shadow")
    assert switches() == {"host rule": 2, "host everything": 1, "fleet rule": 1}
    (place / "disable").touch()
    eventually("the file is seen", lambda: switches().get("file everything") == 1)
    (place / "disable").unlink()
    for words in (["per-user"], ["trial"], ["web/brake", "--fleet"], ["--all"]):
        switch(*words, "--clear")
    eventually("nothing is switched any more", lambda: not switches())


@beside_one_daemon
def test_prometheus_takes_all_of_it(host, place, idle):
    """A Prometheus with short intervals: it scrapes the daemon, evaluates rules, and gets the queries of each panel."""
    drive(host)
    (place / "alerts.yaml").write_text(re.sub(r"interval: 1\w", "interval: 1s", ALERTS.read_text()))
    job = {"job_name": "tidegate", "static_configs": [{"targets": [host.metrics]}]}
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(place / "alerts.yaml")], "scrape_configs": [job]}
    (place / "prometheus.yaml").write_text(json.dumps(config))
    options = {"config.file": "prometheus.yaml", "storage.tsdb.path": "tsdb", "web.listen-address": "127.0.0.1:0"}
    command = [tool("prometheus")]
    command += [f"--{name}={place / value if ':' not in value else value}" for name, value in options.items()]
    log = place / "prometheus.log"
    with running(command, log):
        pattern = r'msg="Listening on" address=(\S+)'
        address = eventually("Prometheus listens", lambda: re.search(pattern, log.read_text()))[1]
        ask = lambda path, **parameters: json.loads(fetch(address, path, **parameters))["data"]  # noqa: E731
        query = lambda text: ask("/api/v1/query", query=text)["result"]  # noqa: E731
        eventually("Prometheus is ready", lambda: "Server is ready" in log.read_text())
        eventually("it has scraped thrice", lambda: query('count_over_time(up{job="tidegate"}[1m]) >= 3'))
        drive(host)
        scrapes = int(query('count_over_time(up{job="tidegate"}[1h])')[0]["value"][1])
        more = f'count_over_time(up{{job="tidegate"}}[1h]) > {scrapes + 1}'
        eventually("it has scraped again", lambda: query(more))
        rules = [rule for group in ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(RULES)
        unknown = [rule["name"] for rule in rules if (rule["health"], rule.get("lastError", "")) != ("ok", "")]
        assert not unknown, rules
        firing = [
            alert["labels"]["alertname"] for alert in ask("/api/v1/alerts")["alerts"] if alert["state"] == "firing"
        ]
        assert not firing, "nothing lasts so long, and nothing is wrong"
        starts = {one["name"] for one in DASHBOARD["annotations"]["list"]}
        empty = [where for where, text in queries() if not query(text) and where not in starts]
        assert not empty
        jobs = ask("/api/v1/label/instance/values", **{"match[]": 'tidegate_build_info{job=~".*"}'})
        assert jobs == [host.metrics]


def test_the_dashboard_is_of_the_shape_that_grafana_takes():
    every = DASHBOARD["panels"]
    assert [panel["title"] for panel in every if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in every}) == len(every)
    taken = set()
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["w"] > 0 and place["h"] > 0
        xs, ys = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in xs for y in ys}
        assert not cells & taken, panel["title"]
        taken |= cells
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["datasource"] == source and all(target["datasource"] == source for target in panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            wanted = {("job", "=~", "$job"), ("instance", "=~", "$instance")}
            found = [set(matchers) >= wanted for name, matchers in selectors(target["expr"])]
            assert all(found), f"{panel['title']} shows what is not chosen"
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles), "tests name panels by their titles"
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert [variables[name]["type"] for name in ("datasource", "job", "instance")] == ["datasource", "query", "query"]
    assert DASHBOARD["id"] is None and DASHBOARD["uid"] == "tidegate", "so that it can be imported again over itself"
