"""Pacing by the responses of limited services."""

import asyncio
import email.utils
import os
import threading
import time
import types

import pytest
from test_client import in_child

from tidegate import pace
from tidegate.pace import Pace, level, retry_after


class Clock:
    now = 1_000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def answer(status=200, **fields):
    return types.SimpleNamespace(status_code=status, headers={name.replace("_", "-"): v for name, v in fields.items()})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"ratelimit": '"a";r=39;t=1', "ratelimit-policy": '"a";q=40;w=2'}, (39, 40, 1.0, 2.0)),
        ({"ratelimit": '"a";r=39, "b";r=1;t=9', "ratelimit-policy": '"b";w=60;q=100, "a";q=40'}, (1, 100, 9.0, 60.0)),
        ({"ratelimit": '"a;r=9\\"";r=3', "ratelimit-policy": '"a;r=9\\"";q=4;qu="places"'}, (3, 4, None, None)),
        ({"x-ratelimit-remaining": "7", "x-ratelimit-limit": "40"}, (7, 40, None, None)),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-retry-after": "3"}, (0, None, 3.0, None)),
        ({"ratelimit": "limit=100, remaining=50"}, None),
        ({"ratelimit": '"a";r=x', "x-ratelimit-remaining": "-1"}, None),
        ({"ratelimit": '"' * 9_999}, None),
    ],
)
def test_levels(fields, expected):
    assert level(fields) == expected


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7.0), (" 0 ", 0.0), ("", None), ("soon", None), ("-1", None), ("1" * 5_000, None)]
)
def test_retry_after(header, expected):
    assert retry_after({"retry-after": header}) == expected


def test_retry_after_as_a_date(clock):
    assert retry_after({"retry-after": email.utils.formatdate(clock.now + 30, usegmt=True)}) == pytest.approx(30, abs=1)
    assert retry_after({"retry-after": email.utils.formatdate(clock.now - 30, usegmt=True)}) == 0


def test_ample_remaining_quota_delays_no_call(clock):
    mine = Pace()
    for left in range(39, 4, -1):
        assert mine.turn() == 0
        mine.told(200, {"RateLimit": f'"a";r={left};t=1', "RateLimit-Policy": '"a";q=40;w=2'})


def test_near_the_limit_calls_follow_its_refill_rate(clock):
    mine = Pace()
    mine.told(200, {"RateLimit": '"a";r=3;t=1', "RateLimit-Policy": '"a";q=40;w=2'})
    assert [round(mine.turn(), 9) for _ in range(3)] == [0, 0.05, 0.1]  # 40 in 2 s


def test_at_the_limit_it_waits_for_the_reset(clock):
    mine = Pace()
    mine.told(200, {"RateLimit": '"a";r=0;t=4'})
    assert mine.turn() == 4
    mine = Pace(longest=2)
    mine.told(200, {"RateLimit": '"a";r=0;t=3600'})
    assert mine.turn() == 2  # at most `longest`, whatever the service asks for


def test_a_refusal_is_retried_after_its_wait(clock):
    answers = [answer(429, Retry_After="5"), answer(503), answer(200)]
    mine, at = Pace(), []

    def send():
        at.append(clock.now)
        return answers[len(at) - 1]

    assert mine.call(send).status_code == 200
    assert 5 <= at[1] - at[0] <= 7 and 0 <= at[2] - at[1] <= 4  # full jitter: of 2 s, then of 4 s


def test_jitter_is_full(clock):
    waits = [Pace().told(503, {}, 3) for _ in range(500)]
    assert min(waits) < 1 and max(waits) > 7 and max(waits) <= 8


@pytest.mark.parametrize(
    "refusal",
    [
        answer(429, Retry_After="3600"),  # longer than `longest`
        answer(429, RateLimit='"a";r=40;t=0'),  # it can never pass: limit headers without a retry time
        answer(403),
        answer(500),
    ],
)
def test_does_not_retry(clock, refusal):
    sent = []
    assert Pace().call(lambda: sent.append(1) or refusal) is refusal and len(sent) == 1


def test_stops_after_some_retries(clock):
    sent = []
    assert Pace(tries=3).call(lambda: sent.append(1) or answer(503)).status_code == 503 and len(sent) == 3


def test_the_budget_bounds_retries_of_many_calls(clock):
    mine, sent = Pace(), []
    for _ in range(100):
        mine.call(lambda: sent.append(1) or answer(503))
    assert len(sent) == 100 + 10  # the saved retries
    for _ in range(50):
        mine.call(lambda: answer(200))
    sent.clear()
    mine.call(lambda: sent.append(1) or answer(503))
    assert len(sent) == 4


def test_asynchronous_calls_do_not_block_the_loop():
    mine = [Pace() for _ in range(10)]

    async def one(pace):
        answers = iter([answer(200, RateLimit='"a";r=0;t=1'), answer(200)])

        async def send():
            return next(answers)

        await pace.call_async(send)
        return await pace.call_async(send)

    async def main():
        return await asyncio.gather(*(one(pace) for pace in mine))

    started = time.monotonic()
    assert [got.status_code for got in asyncio.run(main())] == [200] * 10
    assert 1 <= time.monotonic() - started < 5


def test_a_child_of_a_fork_does_not_wait_for_a_lock_of_its_parent():
    paced = Pace()
    holder = threading.Thread(target=paced._lock.acquire)  # another thread holds the lock during the fork
    holder.start()
    holder.join()
    assert in_child(lambda: paced.turn() == 0.0, os.fork)
