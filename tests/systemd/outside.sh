#!/usr/bin/env bash
# Runs inside.sh under a service manager of its own: in a mount namespace in which /run, /tmp and /var/tmp are others, in a
# control group of its own, with no unit but those of the test. A manager that had this machine's units would clean up
# /tmp, and one in this machine's control group would move every process of it: hence all this.
# Usage: outside.sh BINARY UNITS SCRIPTS. Exit 77: this machine does not allow it, and the last line says why.
set -u
skip() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only root may have a mount namespace of its own here"
for tool in systemd systemctl unshare python3; do command -v $tool >/dev/null || skip "there is no $tool here"; done
unshare -m --propagation private true 2>/dev/null || skip "no mount namespace can be had here"

name=tidegate-test-$$
groups() { for root in /sys/fs/cgroup /sys/fs/cgroup/*; do [ -e "$root/cgroup.procs" ] && echo "$root"; done; }
[ -n "$(groups)" ] || skip "there are no control groups here"
clean() {
  for root in $(groups); do
    [ -d "$root/$name" ] || continue
    # Only what was started here is in there.
    for pid in $(find "$root/$name" -name cgroup.procs -exec cat {} +); do kill -KILL "$pid" 2>/dev/null; done
  done
  for _ in $(seq 100); do
    left=
    for root in $(groups); do
      [ -d "$root/$name" ] || continue
      find "$root/$name" -depth -type d -exec rmdir {} \; 2>/dev/null
      [ -d "$root/$name" ] && left=yes
    done
    [ -z "$left" ] && break
    sleep 0.05
  done
}
trap clean EXIT
for root in $(groups); do
  mkdir "$root/$name" 2>/dev/null || skip "$root: no control group can be made here"
  if [ -e "$root/cpuset.mems" ] && [ -e "$root/$name/cpuset.mems" ]; then
    cat "$root/cpuset.mems" >"$root/$name/cpuset.mems"
    cat "$root/cpuset.cpus" >"$root/$name/cpuset.cpus"
  fi
done
(
  # The number of this very process, which the next lines move and which then becomes the manager's parent.
  for root in $(groups); do echo "$BASHPID" >"$root/$name/cgroup.procs" || exit 77; done
  exec timeout -s KILL 120 unshare -m --propagation private bash "$3/inside.sh" "$1" "$2"
)
