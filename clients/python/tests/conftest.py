import hypothesis
from daemons import client, daemon, directory, long_pauses, make_client, played  # noqa: F401

# No deadline for examples: machines differ in speed.
hypothesis.settings.register_profile("any", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any")
