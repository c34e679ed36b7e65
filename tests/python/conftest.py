import pathlib
import sys

# The clients' suite has the daemon to start and stop; this one is run with it or alone.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "clients/python" / part) for part in ("src", "tests")]

from daemons import client, daemon, directory, make_client  # noqa: E402, F401
