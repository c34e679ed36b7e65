"""How long it takes on this machine, now, to ask another process anything: the time of a round trip through `cat`.

A process of its own, that prints the 99th percentile in seconds when its input ends. What a limiter costs is judged by
it, because both wait for a processor that others use too.
"""

import contextlib
import os
import select
import subprocess
import sys
import time

PAUSE = 0.002


def main():
    took = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other:
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            began = time.monotonic()
            os.write(other.stdin.fileno(), b".")
            os.read(other.stdout.fileno(), 1)
            took.append(time.monotonic() - began)
        other.stdin.close()
    print(sorted(took)[int(0.99 * len(took))])


@contextlib.contextmanager
def measuring():
    """Yields the function that ends the measurement and gives its result."""
    command, pipe = [sys.executable, __file__], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def end():
            process.stdin.close()
            return float(process.stdout.read())

        try:
            yield end
        finally:
            process.kill()


if __name__ == "__main__":
    main()
