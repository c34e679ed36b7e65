import pathlib
import sys

import pytest

# The daemons, real and played, are those of the other suites.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("clients/python/src", "clients/python/tests", "tests/python")]

from daemons import daemon, directory, played  # noqa: E402, F401


@pytest.fixture(autouse=True)
def here(application):
    """Each test is of one application, and skipped where that cannot be."""
    if why := application.needs():
        pytest.skip(f"{application} is not tried: {why}")
