"""Limits jobs of Celery: one that may not start yet goes back to its queue, no attempt burnt.

    @app.task(base=tidegate.celery.limited(client, "jobs", lambda org: {"org": org}))
    def export(org): ...
"""

from __future__ import annotations

import random
import time
from typing import Any

from celery import Task  # type: ignore[import-untyped]
from celery.exceptions import Ignore  # type: ignore[import-untyped]

from . import Client, Decision, Denied
from .decorators import checked, judged
from .signals import from_signal

JITTER = 0.5  # of the wait, at least of a second: what was refused together does not come back together


class JobDenied(Denied):
    """A Denied that a result backend can keep."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        decision._asked = None  # there is nothing to release, and the client stays in its process


def limited(client: Client, domain: str = "jobs", attributes: Any = None, cost: Any = 1, **more: Any) -> Any:
    """A base for tasks. `attributes` and `priority` may be functions of the job's arguments.

    A job that is refused goes back under its own id, with its chain, group and retries as they are, delayed by
    `retry_after` and some jitter. One that can never pass (its cost is above the limit, or it is denied) fails with
    JobDenied. Jobs called as functions are not limited; those run eagerly fail with JobDenied, because no queue could
    keep them. If it cannot go back, it runs: a job is worth more than a limit.
    """

    more = checked(domain, attributes, cost, more)

    class Limited(Task):  # type: ignore[misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.request.called_directly:
                return super().__call__(*args, **kwargs)
            words = judged(client, args, kwargs, attributes, more)
            if words is None:
                return self.run(*args, **kwargs)
            decision, outcome = client.acquire(domain, cost=cost, **words), "dropped"
            if not decision:
                self._goes_back(decision, args, kwargs)
            try:
                time.sleep(decision.wait)
                result = self.run(*args, **kwargs)
                outcome = "ok"
                return result
            except Exception:
                outcome = "error"
                raise
            finally:
                decision.release(outcome)

        def _goes_back(self, decision: Decision, args: Any, kwargs: Any) -> None:
            """Raises, unless the broker does not take it."""
            wait = decision.retry_after
            if self.request.is_eager or wait is None or decision.reason == "invalid":
                raise JobDenied(decision)
            delay = wait + random.uniform(0, JITTER * max(wait, 1))
            try:
                self.signature_from_request(self.request, args, kwargs, countdown=delay).apply_async()
            except Exception as error:
                if from_signal(error):  # the job's own time limit
                    raise
                client._log(f"a refused job cannot go back ({type(error).__name__}): it runs", once=True)
                return
            raise Ignore

    return Limited
