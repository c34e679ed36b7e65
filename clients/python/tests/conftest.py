from daemons import client, daemon, directory, make_client, played  # noqa: F401
