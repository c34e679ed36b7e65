"""The adapter of the Python client: a command as a line of JSON on standard input, its result on standard output."""

import json
import logging
import os
import sys
import threading
import time

import tidegate

CLIENTS, LINES, DECISIONS = {}, [], []
FIELDS = ("allowed", "verdict", "status", "degraded", "reason", "rule", "limit", "remaining", "lease")


class Lines(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


def make(given, kind=tidegate.Client):
    logger = logging.Logger("adapter")
    logger.addHandler(Lines())
    options = {name: given[name] for name in ("fallback", "enabled") if name in given}
    options |= {"timeout": given["timeout_ms"] / 1_000} if "timeout_ms" in given else {}
    CLIENTS[given["client"]] = kind(given["socket"], logger=logger, **options)
    return {}


def arguments(given):
    """Returns attributes and options of a call; `{"invalid": true}` is text that is no UTF-8."""
    values = given["attributes"].items()
    odd = {"invalid": b"\xff\xfe", "object": object()}
    attributes = {name: odd[next(iter(value))] if isinstance(value, dict) else value for name, value in values}
    return attributes, {name: given[name] for name in ("cost", "priority", "idem", "on_failure") if name in given}


def result(decision, began):
    took = (time.perf_counter_ns() - began) // 1_000
    DECISIONS.append(decision)
    times = {f"{name[:5]}_us": value and round(value * 1e6) for name, value in times_of(decision)}
    return {name: getattr(decision, name) for name in FIELDS} | times | {"took_us": took}


def times_of(decision):
    return ("retry", decision.retry_after), ("wait", decision.wait)


def raised(error, began):
    return {"raised": type(error).__name__, "took_us": (time.perf_counter_ns() - began) // 1_000}


def ask(given):
    attributes, options = arguments(given)
    began = time.perf_counter_ns()
    try:
        decision = getattr(CLIENTS[given["client"]], given["do"])(given["domain"], attributes, **options)
    except Exception as error:
        return raised(error, began)
    return result(decision, began)


def callers(given):
    return [given | {"do": "hit", "attributes": {"user": f"u{i}"}} for i in range(given["callers"])]


def crowd(given):
    results = {}
    threads = [
        threading.Thread(target=lambda i=i, c=c: results.update({i: ask(c)})) for i, c in enumerate(callers(given))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"all": [results[i] for i in sorted(results)]}


def work(given):
    """Runs work under a lease, which raises if `fails`."""
    ran = False
    try:
        with CLIENTS[given["client"]].limit(given["domain"], given["attributes"]):
            ran = True
            if given["fails"]:
                raise KeyError("of the application")
    except Exception as error:
        return {"ran": ran, "raised": type(error).__name__}
    return {"ran": ran}


def fork(given, ask=ask):
    """Asks in a forked child."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(ask(given | {"do": "hit"})).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        answered = json.load(answer)
    os.waitpid(child, 0)
    return answered


def release(given):
    DECISIONS[-1].release(given["outcome"])
    return {}


def log(given):
    lines = list(LINES)
    LINES.clear()
    return {"lines": lines}


def stats(given):
    return CLIENTS[given["client"]].stats()


if __name__ == "__main__":
    for line in sys.stdin:
        given = json.loads(line)
        print(json.dumps(globals().get(given["do"], ask)(given)), flush=True)
