import pathlib

import pytest

# Uses the daemon fixtures, real and scripted, of the other suites.
from daemons import daemon, directory, played  # noqa: F401


@pytest.fixture(autouse=True)
def here(application):
    """Parametrizes by application; skips those that cannot run here."""
    if why := application.needs():
        pytest.skip(f"{application} is not tried: {why}")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.callspec.params["application"].nightly:
            item.add_marker("nightly")
