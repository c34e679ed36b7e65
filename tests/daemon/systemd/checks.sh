#!/usr/bin/env bash
# The packaged units under a system manager, unchanged: installs, starts and breaks them, and prints its findings as
# lines `name=value`. Only the manager that root.sh starts may run it.
set -u
path=/run/tidegate/tidegate.sock log=/var/log/tidegate units=/etc/systemd/system now=0 last=no
fact() { echo "$1=$2"; }
show() { systemctl show -p "$2" --value "$1"; }
main() { show tidegate.service MainPID; }
# As a user with access to the socket, and as one without.
member() { setpriv --reuid=web --regid=web --init-groups timeout 6 tidegate "$@" 2>&1; }
outsider() { setpriv --reuid=other --regid=other --init-groups timeout 6 tidegate "$@" 2>&1; }
ask() { member peek "$1" user=u1 --on-failure refuse; }
inode() { stat -c %i $path; }
# Waits for a condition: prints whether it became true within twenty seconds.
eventually() { for _ in $(seq 400); do "$@" && { echo yes; return; }; sleep 0.05; done; echo no; }
answers() { ask api | grep -q 'per-user: '; }
served() { eventually answers; }
in_log() { eventually grep -q "$1" $log; }
scraped() { /usr/bin/python3 -c 'import sys, urllib.request as u
print(len(u.urlopen(f"http://{sys.argv[1]}:9631/metrics", timeout=1).read()) > 0 and "yes")' "$1" 2>/dev/null || echo no; }

# As in docs/operate.md.
systemd-sysusers tidegate.conf
systemd-tmpfiles --create tidegate.conf
sed -i 's/^tidegate:.*:/&web/' /etc/group
cat >/etc/tidegate/rules/api.yaml <<'END'
domain: api
priorities: [critical, other]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
shed:
  - pool: web
    slots: 4
    signals: {accept_queue: {listen: ":18431"}, memory_pressure: {}, cpu_quota: {}, cpu: {}}
END
settings() {
  printf '%s\n' 'log: {level: debug}' 'domains: {mine: {uids: [1234]}, hers: {uids: [1235]}}' \
    'metrics: {listen: "0.0.0.0:9631"}' "$1" >/etc/tidegate/tidegate.yaml
}
settings ''
# There is no journal here.
mkdir $units/tidegate.service.d
drop_in() { printf '[Service]\n%s\n' "$2" >$units/tidegate.service.d/$1.conf; systemctl daemon-reload; }
drop_in log "StandardError=append:$log"
# An address that the filter takes for another host's, and applications that listen.
ip address add 192.0.2.1/32 dev lo
listen() { /usr/bin/python3 -c 'import socket, sys, time
s = socket.create_server(("", int(sys.argv[1]))); time.sleep(120)' "$1" & }
listen 18431
listen 18432
listening() { ss -Hltn | grep -q :18431 && ss -Hltn | grep -q :18432; }
eventually listening >/dev/null

systemctl start tidegate.socket && born=$(inode)
fact socket "$(stat -c %U:%G:%a $path)"
systemctl start tidegate.service
fact state "$(show tidegate.service ActiveState)"
fact status "$(show tidegate.service StatusText)"
main=$(main)
fact user "$(ps -o user= -p "$main")"
fact seccomp "$(sed -n 's/^Seccomp:\t//p' /proc/$main/status)"
fact privileges "$(sed -n 's/^CapEff:\t//p' /proc/$main/status)"
fact state_directory "$(stat -c %U:%a /var/lib/tidegate)"
fact served "$(served)"
fact outsider "$(outsider peek api user=u1 --on-failure refuse | head -n 1)"
# The daemon knows the peer's user: each of these domains is open to one of two users.
fact peer "$(ask mine)"
fact other_peer "$(ask hers)"
fact slice_refused "$(grep -c 'grants no short slice' $log)"
# An application at work, in a control group.
member acquire api user=u2 --pool web --on-failure refuse -- sleep 5 &
reads() {
  tidegate status --json | tr -d ' \n' | grep -q "\"name\":\"$1\",\"readable\":true,\"utilization\":[0-9]"
}
cat /proc/pressure/memory >/dev/null 2>&1 && fact reads_pressure "$(eventually reads memory_pressure)"
for reading in accept_queue cpu cpu_quota; do fact reads_$reading "$(eventually reads $reading)"; done
grep 'no reading' $log
wait $!
fact doctor "$(tidegate doctor --as web >/run/doctor 2>&1 && echo yes)"
grep -E '^(WRONG|look|    )' /run/doctor
fact operator "$(tidegate status | head -n 1)"
fact scraped_here "$(scraped 127.0.0.1)"
fact scraped_elsewhere "$(scraped 192.0.2.1)"

# A reload.
sed -i 's/burst: 5/burst: 6/' /etc/tidegate/rules/api.yaml
systemctl reload tidegate.service && fact reload "$(in_log 'burst 5 → 6')"

# Killed: the next daemon answers requests that arrived meanwhile, immediately and without a retry.
last=yes
for _ in 1 2 3 4 5; do
  kill -KILL "$(main)"
  member peek api user=u1 --timeout 5s --on-failure refuse | grep -q 'per-user: ' || last=no
done
fact killed_answered $last

# Stopped: the watchdog ends it, and another replaces it at the same socket.
eventually test "$(show tidegate.service ActiveState)" = active >/dev/null
main=$(main) restarts=$(show tidegate.service NRestarts)
kill -STOP "$main"
replaced() { now=$(main); [ "$now" != "$main" ] && [ "$now" != 0 ]; }
fact stopped_replaced "$(eventually replaced)"
fact stopped_served "$(served)"
fact stopped_restarts $(($(show tidegate.service NRestarts) - restarts))

# It cannot start, and each connection starts it again: the socket stays, however frequent that is (here, with the set-up
# of each try, it would not always have been too frequent).
settings 'mode: nonsense'
kill -KILL "$(main)"
for _ in $(seq 30); do timeout 0.05 tidegate peek api user=u1 >/dev/null 2>&1; sleep 0.05; done
fact tries "$(grep -c 'unknown mode' $log)"
fact socket_after_failures "$(show tidegate.socket ActiveState)"
fact trigger_limit "$(show tidegate.socket TriggerLimitIntervalUSec)"
settings ''
fact mended "$(served)"

systemctl stop tidegate.service tidegate.socket
fact path_stays "$([ "$(inode)" = "$born" ] && echo yes)"
fact drained "$(in_log 'drained')"

# Further actions from inside the sandbox.
sed 's#^Type=.*#Type=oneshot#; s#^ExecStart=.*#ExecStart=/usr/bin/python3 -I /var/lib/probe.py#; s#^Restart=.*##
  s#^WatchdogSec=.*##; /tidegate.socket/d' $units/tidegate.service >$units/probe.service
cp /root/probe.py /var/lib/
printf '[Service]\nStandardOutput=append:/said/facts\nStandardError=append:/said/facts\n' |
  install -D /dev/stdin $units/probe.service.d/said.conf
systemctl daemon-reload && systemctl start probe.service

# The drop-in of docs/operate.md for an address elsewhere.
drop_in elsewhere IPAddressAllow=192.0.2.1
systemctl start tidegate.service
fact allowed_elsewhere "$(eventually answers >/dev/null; scraped 192.0.2.1)"
systemctl stop tidegate.service tidegate.socket
rm $units/tidegate.service.d/elsewhere.conf

# The findings of the test if the sandbox took too much.
sed -i '/^SystemCallFilter=sched_setattr/d; s/ AF_NETLINK//; s/^NoNewPrivileges=.*/&\nPrivateUsers=yes/' $units/tidegate.service
: >$log
systemctl daemon-reload && systemctl start tidegate.service
fact narrow_served "$(served)"
fact narrow_peer "$(ask mine)"
fact narrow_slice "$(in_log 'grants no short slice')"
fact narrow_queue "$(in_log 'accept_queue.*cannot sample\|cannot sample.*accept_queue')"
systemctl stop tidegate.service tidegate.socket
