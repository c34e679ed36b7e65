import os
import random

import pytest

# Uses the daemon fixture of the clients' suite.
from daemons import client, daemon, directory, make_client  # noqa: F401


@pytest.fixture
def rng():
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    return random.Random(seed)
