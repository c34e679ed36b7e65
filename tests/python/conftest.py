import os
import random

import pytest

# The clients' suite has the daemon to start and stop.
from daemons import client, daemon, directory, make_client  # noqa: F401


@pytest.fixture
def dice():
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    return random.Random(seed)
