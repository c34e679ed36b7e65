"""Sends all kinds of requests in turn, and writes the results. client.rb and main.go do the same.

    client.py NAME SOCKET OUT PAUSE_MS

A line for each request: `C BEGAN ENDED NUMBER KIND USER VERDICT REASON RULE RETRY_S LEASE`, `R BEGAN NUMBER` before a
release, `X` and an exception. Times are seconds of the monotonic clock. USR1: forks; the child
continues for two seconds beside its parent.
"""

import os
import signal
import sys
import time

import tidegate

# The frequency of each kind of request, in this order.
MIX = (
    *("steady", "fleet", "calm", "work", "steady", "fleet", "window", "steady"),
    *("calm", "fleet", "work", "denied", "steady", "fleet", "calm", "work"),
)
USERS = {"steady": "s", "fleet": "f", "window": "v", "work": "w", "denied": "d"}
HOLDS = (0.01, 0.05, 0.3)  # seconds of work


def main(name, path, out, pause):
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    client, signals = tidegate.Client(path), []
    signal.signal(signal.SIGTERM, lambda *_: signals.append("end"))
    signal.signal(signal.SIGUSR1, lambda *_: signals.append("fork"))

    def write(*words):
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    number, held, until = 0, [], float("inf")
    while "end" not in signals and time.monotonic() < until:
        if "fork" in signals:
            signals.clear()
            if os.fork() == 0:
                name, held, until = f"{name}-child", [], time.monotonic() + 2
                number = 1_000_000 + number
        try:
            number += 1
            kind = MIX[number % len(MIX)]
            user = f"{USERS[kind]}{number // len(MIX) % 2}" if kind in USERS else name
            attributes, began = {"kind": kind, "user": user}, time.monotonic()
            d = client.acquire("api", attributes) if kind == "work" else client.hit("api", attributes)
            words = (d.verdict, d.reason or "-", d.rule or "-", d.retry_after if d.retry_after is not None else -1)
            write("C", began, time.monotonic(), number, kind, user, *words, int(d.lease is not None))
            if d.lease is not None:
                held.append((time.monotonic() + HOLDS[number % len(HOLDS)], number, d))
            for one in [one for one in held if one[0] < time.monotonic()]:
                held.remove(one)
                write("R", time.monotonic(), one[1])
                one[2].release()
        except Exception as error:
            write("X", repr(error))
        time.sleep(pause / 1000)
    for _, one, d in held:
        write("R", time.monotonic(), one)
        d.release()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
