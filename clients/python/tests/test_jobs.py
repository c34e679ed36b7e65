"""Celery jobs, with a broker in memory: requeued jobs, their delay and headers; every end of a job frees its lease."""

import contextlib
import datetime
import pickle
import types

import pytest
from daemons import ALLOW

import tidegate

celery = pytest.importorskip("celery")
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded  # noqa: E402

import tidegate.celery  # noqa: E402

WAIT = 10.0


def grant(connection, message):
    return [1, message[1], *ALLOW, 77] if message[0] == 1 else [2, message[1], True]


def refuse(connection, message):
    return [1, message[1], 1, "per-job", 5, 1_000_000, 0, int(WAIT * 1e6), int(WAIT * 1e6)]


def never(connection, message):
    return [1, message[1], 1, "per-job", 5, 1_000_000, 0, 0, None]


@pytest.fixture
def app():
    with contextlib.closing(celery.Celery("jobs", broker="memory://", backend="cache+memory://")) as made:
        yield made


@pytest.fixture
def sent(app):
    """Records the headers of every message to the broker, and its queue."""
    seen = []

    def record(headers, properties, routing_key, body, **_):
        seen.append(headers | {"routing_key": routing_key, "priority": properties.get("priority"), "body": body})

    celery.signals.before_task_publish.connect(record, weak=False)
    yield seen
    celery.signals.before_task_publish.disconnect(record)


def job(app, client, function, **options):
    function.__name__ = "export"  # Celery needs a name that it can write
    options = {"base": tidegate.celery.limited(client, "jobs", lambda *args: {"job": "export"}), "bind": True} | options
    return app.task(name="export", **options)(function)


def run(task, *args, **request):
    """Runs a job as a worker does."""
    known = {"id": "j1", "retries": 2, "called_directly": False, "is_eager": False, "args": args, "kwargs": {}}
    task.push_request(**known | request)
    try:
        return task.__call__(*args)
    finally:
        task.pop_request()


def test_sends_the_request(played, client, app):
    played.script = grant
    task = job(app, client, lambda self, number: number)
    assert run(task, 7) == 7
    assert played.seen[1][:5] == [1, 1, "jobs", [["job", "export"]], 1]
    assert played.releases() == [[77, 0]]


def test_a_refused_job_is_queued_unchanged_with_delay(played, client, app, sent):
    played.script = refuse
    ran = []
    task = job(app, client, lambda self, number: ran.append(number))
    request = {
        "group": "g1",
        "root_id": "r1",
        "parent_id": "p1",
        "timelimit": [30, 20],
        "delivery_info": {"exchange": "", "routing_key": "slow", "priority": 3},
    }
    with pytest.raises(Ignore):
        run(task, 7, **request)
    (headers,) = sent
    assert ran == [] and (headers["id"], headers["retries"], headers["task"]) == ("j1", 2, "export")
    assert (headers["group"], headers["root_id"], headers["timelimit"]) == ("g1", "r1", [30, 20])
    assert (headers["routing_key"], headers["priority"], list(headers["body"][0])) == ("slow", 3, [7])
    assert played.releases(0) == []  # there was no lease to release


def test_retries_of_jobs_refused_together_are_spread(played, client, app, sent):
    played.script = refuse
    task = job(app, client, lambda self: None)
    for _ in range(50):
        with pytest.raises(Ignore):
            run(task)
    now = datetime.datetime.now(datetime.timezone.utc)
    delays = [(datetime.datetime.fromisoformat(headers["eta"]) - now).total_seconds() for headers in sent]
    assert min(delays) > WAIT - 5 and max(delays) <= WAIT * 1.5  # 5 s of slack: `now` is later than each call
    assert max(delays) - min(delays) > WAIT * 0.25


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("mine"), 1),
        (SoftTimeLimitExceeded(), 1),
        (Retry(), 1),
        (Ignore(), 1),
        (Reject(), 1),
        (SystemExit(), 2),
        (KeyboardInterrupt(), 2),
    ],
)
def test_every_end_releases_the_lease(played, client, app, error, outcome):
    played.script = grant

    def ends(self):
        raise error

    with pytest.raises(type(error)):
        run(job(app, client, ends))
    assert played.releases() == [[77, outcome]]


def test_an_exception_during_a_wait_releases_the_lease(played, client, app, monkeypatch):
    played.script = lambda connection, message: [1, message[1], 3, *ALLOW[1:-1], 2_000_000, 77]
    slept = []

    def interrupted(seconds):
        slept.append(seconds)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(tidegate.celery, "time", types.SimpleNamespace(sleep=interrupted))
    with pytest.raises(SoftTimeLimitExceeded):
        run(job(app, client, lambda self: None))
    assert slept == [2.0] and [lease for lease, _ in played.releases()] == [77]


def test_a_job_that_can_never_pass_fails_and_is_serializable(played, client, app, sent):
    played.script = never
    with pytest.raises(tidegate.celery.JobDenied, match="can never pass") as raised:
        run(job(app, client, lambda self: None))
    kept = pickle.loads(pickle.dumps(raised.value))
    assert kept.decision.rule == "per-job" and kept.decision.retry_after is None and sent == []


def test_a_direct_or_eager_job_is_not_queued_again(played, client, app, sent):
    played.script = refuse
    task = job(app, client, lambda self: "done")
    assert run(task, called_directly=True) == "done" and played.requests() == []
    with pytest.raises(tidegate.celery.JobDenied):
        run(task, is_eager=True)
    assert sent == []


def test_charges_by_the_result_before_the_release(played, client, app):
    played.script = grant
    base = tidegate.celery.limited(client, "llm", lambda *args: {"job": "export"}, charge=lambda rows: {"rows": rows})
    assert run(job(app, client, lambda task: 30, base=base)) == 30
    assert played.releases() == [[77, 0]]
    asked = [message for message in played.seen if message[0] in (2, 5)]
    assert [message[0] for message in asked] == [5, 2] and asked[0][4] == {"rows": 30}
