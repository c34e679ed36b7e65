# Uses the daemons, real and scripted, of the Python client's suite.
from daemons import daemon, directory  # noqa: F401
