"""docs/migrate/ratelimit.md, followed with the real service and a real Redis."""

import time

import pytest

from needs import ROOT
from stack import Stack, need_program

PAGE = ROOT / "docs/migrate/ratelimit.md"
DAY = 86_400


@pytest.fixture
def stack(daemon, directory):
    with Stack(directory, daemon.binary) as made:
        yield made


@pytest.mark.nightly
def test_the_page(stack):
    need_program("service_cmd")
    need_program("redis-server")
    # Windows of both restart at midnight: avoid it between the two requests of one message.
    if (left := DAY - time.time() % DAY) < 120:
        time.sleep(left)
    assert stack.read(PAGE.read_text()) > 15
