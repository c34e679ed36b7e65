import pytest

# Uses the daemon fixtures of the other suites.
from daemons import daemon, directory, make_client  # noqa: F401
from reader import Reader


@pytest.fixture
def reader(daemon, directory):  # noqa: F811
    with Reader(directory, daemon.binary) as made:
        yield made
