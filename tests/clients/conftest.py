import pytest

# The daemons, real and played, are those of the other suites.
from daemons import daemon, directory, played  # noqa: F401


@pytest.fixture(autouse=True)
def here(application):
    """Each test is of one application, and skipped where that cannot be."""
    if why := application.needs():
        pytest.skip(f"{application} is not tried: {why}")
