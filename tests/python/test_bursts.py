"""Idle connections after a burst do not exclude other processes."""

import subprocess
import sys

import tidegate

PROCESSES, THREADS = 17, 64  # together more connections than the daemon accepts
RULES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1000000/s, burst: 2000000}]\n"
# Opens the connections of 64 waiting threads one by one, so that their number does not depend on the machine.
PROCESS = """
import sys, time, tidegate
client = tidegate.Client(sys.argv[1], timeout=10)
for _ in range(int(sys.argv[2])):
    connection = client._checkout(fresh=True)
    connection.ask(tidegate.PING, [], tidegate.DONE, time.monotonic() + 10)
    client._idle.append(connection)
    connection.used = time.monotonic()
print(len(client._idle), flush=True)
sys.stdin.readline()
reasons = [client.hit("api", {"user": "u1"}).reason for _ in range(100)]
print(sum(reason is not None for reason in reasons), client.stats()["missed"], flush=True)
"""


def test_processes_with_idle_connections_leave_room_for_another(daemon, make_client):
    (daemon.rules / "api.yaml").write_text(RULES)
    daemon.start()
    source, processes = str(tidegate.__path__[0]).removesuffix("/tidegate"), []
    try:
        for _ in range(PROCESSES):
            command = [sys.executable, "-c", PROCESS, daemon.socket, str(THREADS)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {"PYTHONPATH": source}}
            processes.append(subprocess.Popen(command, text=True, **pipes))
        assert [process.stdout.readline() for process in processes] == [f"{THREADS}\n"] * PROCESSES
        assert make_client(socket=daemon.socket).hit("api", {"user": "u2"}).reason is None
        for process in processes:  # clients with closed connections get decisions as before
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.stdout.readline() for process in processes] == ["0 {}\n"] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.communicate()
