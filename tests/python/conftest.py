import os
import pathlib
import random
import sys

import pytest

# The clients' suite has the daemon to start and stop; this one is run with it or alone.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "clients/python" / part) for part in ("src", "tests")]

from daemons import client, daemon, directory, make_client  # noqa: E402, F401


@pytest.fixture
def dice():
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    return random.Random(seed)
