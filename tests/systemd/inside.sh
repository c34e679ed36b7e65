#!/usr/bin/env bash
# The packaged units under a real manager, with all that they forbid: starts it, breaks it, and says what it saw as
# lines `name=value`. Only outside.sh may run it.
# Usage: inside.sh BINARY UNITS
set -u
binary=$1 units=$2 waited=0 now=0 last=no
for place in /run /tmp /var/tmp; do mount -t tmpfs tmpfs $place || { echo "nothing can be mounted here"; exit 77; }; done
here=/run/fixture
mkdir -p /run/systemd/system /run/systemd/inaccessible /run/tidegate $here/units $here/rules $here/config
mkdir -m 700 /run/manager
# What is put in place of what a service may not see; made at boot by systemd itself.
(cd /run/systemd/inaccessible && mkdir dir && touch reg sock && mkfifo fifo && mknod chr c 0 0 && mknod blk b 0 0
 chmod 000 ./*) 2>/dev/null
# A service sees neither /tmp nor home directories.
touch $here/tidegate && mount --bind "$binary" $here/tidegate

cat >$here/rules/api.yaml <<'END'
domain: api
priorities: [critical, other]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
shed:
  - pool: web
    slots: 4
    signals: {accept_queue: {listen: ":18431"}, memory_pressure: {}, cpu_quota: {}, cpu: {}}
END
settings() { printf 'rules: %s\nlog: {level: debug}\ndomains: {mine: {uids: [1234]}}\n%s\n' $here/rules "$1" >$here/tidegate.yaml; }
settings ''
# The user manager takes no User=: the daemon is root without any capability. The rest is as packaged.
sed -e "s#/usr/bin/tidegate#$here/tidegate#; s#/etc/tidegate#$here#; s#^User=.*#StandardError=append:$here/log#; /^Group=/d" \
  "$units/tidegate.service" >$here/units/tidegate.service
sed -e '/^Socket\(User\|Group\)=/d' "$units/tidegate.socket" >$here/units/tidegate.socket
for target in default basic sockets shutdown exit; do
  printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target >$here/units/$target.target
done
export XDG_RUNTIME_DIR=/run/manager HOME=$here XDG_CONFIG_HOME=$here/config SYSTEMD_UNIT_PATH=$here/units
unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID DBUS_SESSION_BUS_ADDRESS TIDEGATE_SOCKET
SYSTEMD_LOG_TARGET=null systemd --user &
until [ -S /run/manager/systemd/private ]; do sleep 0.02; [ $((waited += 1)) -lt 500 ] || { echo "no manager starts here"; exit 77; }; done

path=/run/tidegate/tidegate.sock
ctl() { systemctl --user "$@"; }
show() { ctl show -p "$2" --value "$1"; }
ask() { timeout 5 $here/tidegate peek "$1" user=u1 --socket $path 2>&1; }
fact() { echo "$1=$2"; }
inode() { stat -c %i $path; }
# Waits until the daemon answers.
served() { for _ in $(seq 400); do ask api | grep -q 'per-user: ' && { echo yes; return; }; sleep 0.05; done; echo no; }
in_log() { for _ in $(seq 60); do grep -q "$1" $here/log && { echo yes; return; }; sleep 0.05; done; echo no; }

python3 -c 'import socket,time
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 18431)); s.listen(5); time.sleep(120)' &
sleep 0.3
ctl start tidegate.socket && born=$(inode)
fact mode "$(stat -c %a $path)"
ctl start tidegate.service
fact state "$(show tidegate.service ActiveState)"
fact status "$(show tidegate.service StatusText)"
main=$(show tidegate.service MainPID)
fact seccomp "$(sed -n 's/^Seccomp:\t//p' /proc/$main/status)"
fact privileges "$(sed -n 's/^CapEff:\t//p' /proc/$main/status)"
fact served "$(served)"
# Who is at the other end is known: this domain is open to one user alone.
peer() { setpriv --reuid=1234 --regid=0 --clear-groups $here/tidegate peek mine user=u1 --socket $path 2>&1; }
fact peer "$(peer)"
fact other_peer "$(ask mine)"
sleep 1.5 # the machine is read once a second
fact slice_refused "$(grep -c 'grants no short slice' $here/log)"
fact unread "$(grep -c 'no reading' $here/log)"
grep 'no reading' $here/log
fact state_directory "$(ls -d $here/config/tidegate)"

# Asked to read its rules again.
sed -i 's/burst: 5/burst: 6/' $here/rules/api.yaml
ctl reload tidegate.service && fact reload "$(in_log 'burst 5 → 6')"

# Stopped: the watchdog ends it, and another takes its place at the same socket.
kill -STOP "$main"
for _ in $(seq 300); do now=$(show tidegate.service MainPID); [ "$now" != "$main" ] && [ "$now" != 0 ] && break; sleep 0.05; done
fact stopped_replaced "$([ "$now" != "$main" ] && served)"
fact stopped_result "$(show tidegate.service NRestarts)"

# Killed: whoever connects meanwhile is served by the next one.
for _ in 1 2 3 4 5; do kill -KILL "$(show tidegate.service MainPID)"; last=$(served); done
fact killed_replaced "$last"

# It cannot start, and who connects has it tried again and again: the socket stays.
settings 'mode: nonsense'
kill -KILL "$(show tidegate.service MainPID)"
for _ in $(seq 30); do timeout 0.05 $here/tidegate peek api user=u1 --socket $path >/dev/null 2>&1; sleep 0.05; done
fact tries "$(grep -c 'unknown mode' $here/log)"
fact socket_after_failures "$(show tidegate.socket ActiveState)"
settings ''
fact mended "$(served)"

ctl stop tidegate.service tidegate.socket
fact path_stays "$([ "$(inode)" = "$born" ] && echo yes)"
fact drained "$(in_log 'drained')"

# What the test would see if the sandbox took too much.
sed -i '/^SystemCallFilter=sched_setattr/d; s/ AF_NETLINK//; s/^NoNewPrivileges=.*/&\nPrivateUsers=yes/' $here/units/tidegate.service
: >$here/log
ctl daemon-reload && ctl start tidegate.service
fact narrow_served "$(served)"
fact narrow_peer "$(peer)"
fact narrow_slice "$(in_log 'grants no short slice')"
fact narrow_queue "$(in_log 'accept_queue.*no reading\|no reading.*accept_queue')"
ctl stop tidegate.service tidegate.socket
