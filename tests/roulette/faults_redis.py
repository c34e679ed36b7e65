"""Faults of Redis, and of the path to it. Hosts may lose it, which the fleet's rule has an allowance for."""

from __future__ import annotations

import signal
import time

from kinds import kind

BOTH = ("a", "b")


def fronts(world, hosts, *words):
    for host in hosts:
        world.redis.front(host, *words)


def misled(world, hosts, *words):
    fronts(world, hosts, *words)
    yield
    fronts(world, hosts, "forward")


def some(rng, host):
    return rng.choice([(host.name,), BOTH])


@kind("redis!", disturbs=True, empties=True)
def redis_killed(world, host, rng):
    """It restarts without its data."""
    world.redis.kill(world.redis.first)
    yield
    world.redis.start(world.redis.first)


@kind("redis!", disturbs=True)
def redis_stopped(world, host, rng):
    server = world.redis.servers[world.redis.first]
    server.send_signal(signal.SIGSTOP)
    yield
    server.send_signal(signal.SIGCONT)


@kind("redis!", disturbs=True, empties=True)
def redis_flushed(world, host, rng):
    for _ in range(rng.randint(1, 3)):
        world.redis.say(world.redis.first, rng.choice(["FLUSHALL", "FLUSHDB"]))
    yield


@kind("redis!", disturbs=True)
def scripts_flushed(world, host, rng):
    for _ in range(10):
        world.redis.say(world.redis.first, "SCRIPT", "FLUSH")
        time.sleep(0.03)
    yield


@kind("redis!", disturbs=True)
def redis_paused(world, host, rng):
    world.redis.say(world.redis.first, "CLIENT", "PAUSE", str(rng.randint(100, 1500)), rng.choice(["WRITE", "ALL"]))
    yield
    world.redis.say(world.redis.first, "CLIENT", "UNPAUSE")


@kind("redis!", disturbs=True)
def redis_asleep(world, host, rng):
    world.redis.say(world.redis.first, "DEBUG", "SLEEP", str(rng.uniform(0.1, 0.9)))
    yield


@kind("redis!", disturbs=True)
def redis_hangs_up(world, host, rng):
    for _ in range(5):
        world.redis.say(world.redis.first, "CLIENT", "KILL", "TYPE", "normal")
        time.sleep(0.05)
    yield


@kind("redis!", disturbs=True)
def redis_full(world, host, rng):
    world.redis.say(world.redis.first, "CONFIG", "SET", "maxmemory", "1")
    yield
    world.redis.say(world.redis.first, "CONFIG", "SET", "maxmemory", "0")


@kind("redis!", disturbs=True, seconds=(0.3, 1.0))
def redis_read_only(world, host, rng):
    """The path leads to the replica, which is still read-only."""
    world.redis.front("target", world.redis.socket(1 - world.redis.first))
    yield
    world.redis.front("target", world.redis.socket(world.redis.first))


@kind("redis!", disturbs=True)
def redis_failed_over(world, host, rng):
    """The replica lacks the last writes."""
    replica = world.redis.servers[1 - world.redis.first]
    replica.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0, 0.5))
    world.redis.kill(world.redis.first)
    replica.send_signal(signal.SIGCONT)
    time.sleep(rng.uniform(0, 0.3))
    former = world.redis.fail_over()
    yield
    world.redis.start(former)


@kind("redis!", disturbs=True, seconds=(0.2, 0.8))
def redis_wants_another_password(world, host, rng):
    """Existing connections stay; new ones are refused, and retry after 30 s."""
    world.redis.say(world.redis.first, "CONFIG", "SET", "requirepass", "other")
    fronts(world, [host.name], "drop")
    yield
    world.redis.say(world.redis.first, "CONFIG", "SET", "requirepass", "good", password="other")


@kind("redis!", disturbs=True, seconds=(0.2, 0.8))
def password_file_wrong(world, host, rng):
    host.password.write_text(rng.choice(["bad", "", "x" * 5000]))
    fronts(world, [host.name], "drop")
    yield
    host.password.write_text("good")


@kind("redis!", disturbs=True, seconds=(0.2, 0.8))
def password_file_gone(world, host, rng):
    away = host.place / "password.away"
    host.password.rename(away)
    fronts(world, [host.name], "drop")
    yield
    away.rename(host.password)


@kind("redis!", disturbs=True)
def way_slow(world, host, rng):
    yield from misled(world, some(rng, host), "slow", rng.choice([3, 20, 60, 300]))


@kind("redis!", disturbs=True, seconds=(0.5, 4.0))
def way_silent(world, host, rng):
    yield from misled(world, some(rng, host), "silent")


@kind("redis!", disturbs=True)
def way_refused(world, host, rng):
    yield from misled(world, some(rng, host), "refuse")


@kind("redis!", disturbs=True)
def replies_lost(world, host, rng):
    yield from misled(world, some(rng, host), "lose", rng.choice([1, 3, 20]))


@kind("redis!", disturbs=True)
def replies_mangled(world, host, rng):
    yield from misled(world, some(rng, host), "mangle", rng.choice([1, 3, 20]))


@kind("redis!", disturbs=True)
def replies_dripping(world, host, rng):
    yield from misled(world, some(rng, host), "drip")


@kind("redis!", disturbs=True)
def replies_endless(world, host, rng):
    yield from misled(world, some(rng, host), "huge")


@kind("redis!", disturbs=True)
def replica_killed(world, host, rng):
    """It affects only the replica."""
    world.redis.kill(1 - world.redis.first)
    yield
    world.redis.start(1 - world.redis.first)
