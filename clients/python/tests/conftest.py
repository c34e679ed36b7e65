import hypothesis
from daemons import client, daemon, directory, long_pauses, make_client, played  # noqa: F401

# How long an example takes is the machine's affair.
hypothesis.settings.register_profile("any", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any")
