import pathlib

import hypothesis
from daemons import client, daemon, directory, long_pauses, make_client, played  # noqa: F401

# No deadline for examples: machines differ in speed.
hypothesis.settings.register_profile("any", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any")


def pytest_configure(config):
    config.addinivalue_line("markers", "without_daemon: needs no daemon, so that it runs while that is built")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.parent == here and "daemon" not in item.fixturenames:
            item.add_marker("without_daemon")
