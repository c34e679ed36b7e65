import pathlib
import sys

# The daemons, real and played, are those of the other suites.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("clients/python/src", "clients/python/tests", "tests/python")]

from daemons import daemon, directory, played  # noqa: E402, F401
