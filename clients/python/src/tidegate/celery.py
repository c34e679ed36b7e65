"""Limits Celery jobs: a refused job returns to its queue without using up a retry.

    @app.task(base=tidegate.celery.limited(client, "jobs", lambda org: {"org": org}))
    def export(org): ...
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Task  # type: ignore[import-untyped]
from celery.exceptions import Ignore  # type: ignore[import-untyped]

from . import Client, Decision, Denied
from .decorators import LimitedOptions, call_options, charge_result, check_options
from .protocol import Attributes, Cost, Outcome
from .signals import from_signal

if TYPE_CHECKING:
    from typing_extensions import Unpack

JITTER = 0.5  # of the wait, at least of 1 s: spreads the retries of jobs that were refused together


class JobDenied(Denied):
    """A Denied that a result backend can serialize."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        decision._asked = None  # without a lease it needs no client, which cannot be pickled


def limited(
    client: Client,
    domain: str = "jobs",
    attributes: Attributes | Callable[..., Attributes] = None,
    cost: Cost = 1,
    **more: Unpack[LimitedOptions],
) -> Any:
    """Returns a base class for tasks. `attributes` and `priority` may be functions of the job's arguments, `charge` of
    its result.

    A refused job returns to its queue with the same id, chain, group and retries, delayed by `retry_after` and jitter.
    A job that can never pass (cost above the limit, or denied) fails with JobDenied, and so does a refused eager job,
    which has no queue. Direct calls are not limited. If the broker does not accept the job, it runs.
    """

    charge, checked = more.pop("charge", None), check_options(domain, attributes, cost, {**more})

    class Limited(Task):  # type: ignore[misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.request.called_directly:
                return super().__call__(*args, **kwargs)
            options = call_options(client, args, kwargs, attributes, checked)
            outcome: Outcome = "dropped"
            decision = client.acquire(domain, cost=cost, **options)
            if not decision:
                self._requeue(decision, args, kwargs)
            try:
                time.sleep(decision.wait)
                result = self.run(*args, **kwargs)
                if charge is not None:
                    charge_result(client, domain, options["attributes"], decision, charge, result)
                outcome = "ok"
                return result
            except Exception:
                outcome = "error"
                raise
            finally:
                decision.release(outcome)

        def _requeue(self, decision: Decision, args: Any, kwargs: Any) -> None:
            """Sends the job back and raises Ignore, or raises JobDenied; returns if the broker does not accept it."""
            wait = decision.retry_after
            if self.request.is_eager or wait is None or decision.reason == "invalid":
                raise JobDenied(decision)
            delay = wait + random.uniform(0, JITTER * max(wait, 1))
            try:
                self.signature_from_request(self.request, args, kwargs, countdown=delay).apply_async()
            except Exception as error:
                if from_signal(error):  # the job's own time limit
                    raise
                client._log(f"a refused job cannot be requeued ({type(error).__name__}): it runs", once=True)
                return
            raise Ignore

    return Limited
