"""Jobs under a real Celery worker, with a broker in a folder: refused ones are queued again, and each runs once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from servers import OWN_GROUP, SOURCE, metrics, wait_until

JOBS = """
import json, os, pathlib, time, tidegate, tidegate.celery
from celery import Celery, chain

here = pathlib.Path(__file__).parent
queue = str(here / "queue")
app = Celery("jobs", broker="filesystem://", backend=f"file://{here / 'results'}")
app.conf.broker_transport_options = {
    "data_folder_in": queue, "data_folder_out": queue, "control_folder": str(here / "control"),
}
app.conf.worker_prefetch_multiplier = 100
client = tidegate.Client(timeout=1.0)

def record(task, event):
    line = json.dumps({"event": event, "id": task.request.id, "retries": task.request.retries, "at": time.time()})
    with open(here / "record", "a") as file:
        file.write(line + chr(10))

@app.task(base=tidegate.celery.limited(client, "jobs", lambda name, *rest: {"job": name}), bind=True, max_retries=0)
def work(self, name, number, fail=False):
    record(self, [name, number])
    if fail:
        raise RuntimeError("mine")
    return number

@app.task(base=tidegate.celery.limited(client, "jobs", {"job": "big"}, cost=100), bind=True)
def never(self):
    record(self, "never")

@app.task(base=tidegate.celery.limited(client, "jobs", lambda: {}["missing"]), bind=True)
def broken(self):
    record(self, "broken")

@app.task(bind=True)
def after(self, result):
    record(self, ["after", result])
"""
RULES = """
domain: jobs
limits: [{name: per-job, key: [job], rate: 5/s, burst: 3}]
concurrency: [{name: at-once, key: [], max: 2, expires: 1h}]
"""


@pytest.fixture
def jobs(daemon, directory, monkeypatch):
    """Yields the module of the jobs and a record of finished ones; a worker runs them."""
    (daemon.rules / "jobs.yaml").write_text(RULES)
    daemon.start()
    for folder in ("queue", "control", "results"):
        (directory / folder).mkdir()
    (directory / "jobs.py").write_text(JOBS)
    (directory / "record").touch()
    environment = os.environ | {"TIDEGATE_SOCKET": daemon.socket, "PYTHONPATH": f"{SOURCE}:{directory}"}
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--concurrency", "2", "--loglevel", "WARNING"]
    monkeypatch.setenv("TIDEGATE_SOCKET", daemon.socket)
    monkeypatch.syspath_prepend(str(directory))
    sys.modules.pop("jobs", None)
    import jobs

    with open(directory / "log", "w") as log:
        worker = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=log, stderr=log, **OWN_GROUP
        )
        try:
            yield jobs, lambda: [json.loads(line) for line in (directory / "record").read_text().splitlines()]
        finally:
            os.killpg(worker.pid, signal.SIGKILL)  # immediately, with its children, without another look at the queue
            worker.wait()
            jobs.client.close()
            jobs.app.close()


def test_refused_jobs_are_queued_again_and_run_once(jobs, daemon, make_client):
    module, record = jobs
    began = time.monotonic()
    sent = {module.work.delay("report", number).id: number for number in range(10)}
    chained = (module.work.s("chained", 7) | module.after.s()).apply_async()
    failing = module.work.delay("fails", 1, fail=True)
    impossible, broken = module.never.delay(), module.broken.delay()
    wait_until(lambda: len(record()) >= 10 + 2 + 1 + 1, 120)
    took = time.monotonic() - began
    ran = {tuple(entry["event"]): entry for entry in record() if isinstance(entry["event"], list)}
    assert len(record()) == 14  # each once
    reports = [ran["report", number] for number in range(10)]
    assert {entry["id"]: entry["event"][1] for entry in reports} == sent  # with their own ids
    assert {entry["retries"] for entry in record()} == {0}  # with max_retries=0 a used-up retry would be a failure
    assert chained.get(timeout=60) is None and ran["after", 7]["id"] == chained.id
    refused = sum(count for series, count in metrics(daemon).items() if 'rule="per-job",verdict="limit"' in series)
    assert took >= (10 - 3) / 5  # a burst of 3, then 5 a second
    assert refused > 0
    with pytest.raises(RuntimeError, match="mine"):
        failing.get(timeout=60)
    with pytest.raises(Exception, match="can never pass"):
        impossible.get(timeout=60)
    assert broken.get(timeout=60) is None
    client = make_client(socket=daemon.socket)
    wait_until(lambda: client.peek("jobs").remaining == 2)


def test_called_as_functions_and_eagerly(jobs):
    module, record = jobs
    before = time.monotonic()
    assert [module.work("direct", number) for number in range(6)] == list(range(6))
    done = [module.work.apply(("eager", number)) for number in range(20)]
    states = [result.state for result in done]
    assert states.count("SUCCESS") <= 3 + 5 * (time.monotonic() - before) and "FAILURE" in states
    assert "JobDenied" in {type(result.result).__name__ for result in done}
    assert len(record()) == 6 + states.count("SUCCESS")


def test_a_job_runs_if_the_broker_rejects_it(jobs, monkeypatch, caplog):
    module, record = jobs

    def broken(*_, **__):
        raise OSError("the broker is gone")

    monkeypatch.setattr("celery.canvas.Signature.apply_async", broken)
    task = module.work
    for number in range(5):
        task.push_request(id=f"j{number}", retries=0, called_directly=False, is_eager=False, args=(), kwargs={})
        try:
            assert task.__call__("lost", number) == number
        finally:
            task.pop_request()
    assert len(record()) == 5 and "cannot be requeued" in caplog.text


def test_without_a_daemon_jobs_run(jobs, daemon):
    module, record = jobs
    daemon.stop(kill=True)
    for number in range(8):
        module.work.delay("free", number)
    wait_until(lambda: len(record()) == 8, 120)
