"""Random faults of a whole host, from a seed: docs/testing.md describes usage and output."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import oracle  # noqa: E402
import run as runs  # noqa: E402
from kinds import KINDS, Fault, is_here, plan  # noqa: E402
from shrink import shrink  # noqa: E402
from world import ROOT, RULES, commands, fake_library  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/roulette", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: a random one")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--faults", type=int, help="how many; default: two in three seconds")
    parser.add_argument("--only", help="numbers of the faults of the plan to play, such as 3,7,9; empty: none")
    parser.add_argument("--kinds", help="draw from these kinds alone, such as killed,stopped")
    parser.add_argument("--slices", type=int, default=1, help="so many runs, of seeds that follow each other")
    parser.add_argument("--results", type=pathlib.Path, help="a file to which each run adds a line of JSON")
    parser.add_argument("--shrink", type=int, default=8, help="how many runs may be spent on making a failure short")
    parser.add_argument("--pause", type=float, default=25, help="milliseconds between two requests of a client")
    parser.add_argument(
        "--binary", type=pathlib.Path, default=os.environ.get("TIDEGATE_BIN", ROOT / "target/debug/tidegate")
    )
    parser.add_argument("--lie", action="store_true", help="the daemons have other rules than the oracle believes")
    parser.add_argument("--strict", action="store_true", help="the oracle allows for no fault and no busy machine")
    parser.add_argument("--list", action="store_true", help="the kinds of faults")
    return parser.parse_args()


def apart() -> None:
    """Continues in new namespaces: when this process exits, all others exit and all mounts vanish."""
    if os.geteuid() == 0 and "ROULETTE_APART" not in os.environ:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
        os.execvpe(command[0], command, os.environ | {"ROULETTE_APART": "1"})
    if os.getpid() == 1 and (child := os.fork()):  # PID 1: it must reap orphans
        while (ended := os.wait())[0] != child:
            pass
        os._exit(os.waitstatus_to_exitcode(ended[1]) & 255)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def command_of(args: argparse.Namespace, seed: int, faults: list[Fault]) -> str:
    numbers = ",".join(str(fault.number) for fault in faults)
    kinds = f" --kinds {args.kinds}" if args.kinds else ""
    drawn = f"--seed {seed} --seconds {args.seconds:g} --faults {args.faults}{kinds}"
    return f".venv/bin/python tests/roulette {drawn} --only {numbers}"


def lie(rules: str) -> str:
    """Rules that each differ slightly from the correct ones."""
    for true, other in [
        ("kind: denied", "kind: nothing"),
        ("burst: 30", "burst: 45"),
        ("rate: 8/5s", "rate: 12/5s"),
        ("max: 3", "max: 4"),
        ("rate: 1000/s", "rate: 1/s"),
        ("rate: 5/s, burst: 60", "rate: 15/s, burst: 60"),
    ]:
        assert true in rules
        rules = rules.replace(true, other)
    return rules


def one(args: argparse.Namespace, seed: int) -> bool:
    """Plays one seed, and prints the result."""
    faults = plan(seed, args.seconds, args.faults, ["a", "b"], set(args.kinds.split(",")) if args.kinds else None)
    if args.only is not None:
        faults = [fault for fault in faults if str(fault.number) in args.only.split(",")]
    print(f"seed {seed}: {len(faults)} faults in {args.seconds:g} s", flush=True)
    rules = lie(RULES) if args.lie else RULES
    result = runs.run(seed, faults, args.seconds, args.binary, args.pause, rules)
    line = dataclasses.asdict(result) | {"seed": seed, "at": time.strftime("%F %T")}
    print(
        f"seed {seed}: {result.faults} faults of {len(result.kinds)} kinds, {result.calls} requests, {result.unjudged}"
        f" not judged, {result.seconds:.0f} s: {'FAILED' if result.wrong else 'passed'}",
        flush=True,
    )
    if result.wrong:
        print(*(f"  {text}" for text in result.wrong[:30]), sep="\n")
        print(
            *(
                f"  {f.at:7.2f} s {f.number:4} {f.name} of {f.host} for {f.lasts:.2f} s"
                for f in faults[: result.faults]
            ),
            sep="\n",
        )
        print(f"again: {command_of(args, seed, faults[: result.faults])}", flush=True)
        if args.shrink and len(faults) > 1:
            again = lambda fewer: runs.run(seed, fewer, args.seconds, args.binary, args.pause)  # noqa: E731
            few = shrink(faults[: result.faults], result.families, again, args.shrink)
            line["shrunk"] = [fault.number for fault in few]
            print(f"shrunk to {len(few)} faults: {command_of(args, seed, few)}", flush=True)
    if args.results:
        with open(args.results, "a") as file:
            file.write(json.dumps(line) + "\n")
    return not result.wrong


def main() -> int:
    args = arguments()
    if args.list:
        print(*sorted(KINDS), sep="\n")
        return 0
    apart()
    if args.strict:
        oracle.Oracle.lateness = lambda *_: 0.0
        for name, each in KINDS.items():
            KINDS[name] = dataclasses.replace(each, blind=False, loose=(), loses=(), restarts=False, disturbs=False)
    args.faults = args.faults or int(args.seconds * 2 / 3)
    absent = sorted(name for name, kind in KINDS.items() if not all(map(is_here, kind.needs)))
    absent += [language for language, command in commands().items() if not command]
    if absent or not fake_library():
        print(f"SKIPPED, for want of root or a tool: {', '.join(absent)}")
    first = random.randrange(1 << 30) if args.seed is None else args.seed
    results = [one(args, first + number) for number in range(args.slices)]
    print(f"{sum(results)} of {len(results)} runs passed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
