#!/usr/bin/env bash
# Runs checks.sh under a separate systemd, PID 1 of a machine that ends with it: processes, mounts, names, network
# and control groups are in separate namespaces, and the root, made by root.sh, has only /usr of this machine,
# read-only. So nothing that a system manager does at boot reaches this machine's /run, /tmp, /etc or processes;
# it has one control group of this machine, made here and removed at the end.
# Usage: outside.sh BINARY PROJECT [PACKAGES]. With a directory of packages, runs their checks.sh in a machine with
# no installed package. Exit 77: this machine does not allow it, for the reason in the last line.
set -u
binary=$1 project=$2 packages=${3:-} manager=/usr/lib/systemd/systemd
skip() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only root may have name spaces of all kinds here"
for tool in $manager systemctl systemd-sysusers systemd-tmpfiles unshare pivot_root setpriv findmnt ip /usr/bin/python3; do
  command -v $tool >/dev/null || skip "there is no $tool here"
done
[ -L /lib ] || skip "the libraries of this machine are not all in /usr"
own=(unshare --fork --kill-child --pid --mount --uts --ipc --net --propagation private)
"${own[@]}" unshare --cgroup true 2>/dev/null || skip "no name spaces of all kinds can be had here"
groups=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)
[ -n "$groups" ] || skip "there are no control groups of version 2 here"

group=$groups/tidegate-test-$$ stage=$(mktemp -d) machine=
clean() {
  [ -n "$machine" ] && kill -KILL "$machine" 2>/dev/null
  # Its first process has exited and ended all others; their group may be busy a moment longer.
  for _ in $(seq 100); do
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
    [ -d "$group" ] || break
    sleep 0.05
  done
  rm -rf --one-file-system "$stage"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$group" 2>/dev/null || skip "$groups: no control group can be made here"
mkdir "$stage/root" "$stage/said"

# Only the first process of the new machine enters the group, and cannot name another one from there. Whatever happens to
# this script, the machine ends with it.
bound=(setpriv --pdeathsig KILL)
"${bound[@]}" timeout -s KILL 300 "${bound[@]}" "${own[@]}" bash -c '
  echo 0 >"$0/cgroup.procs" || { echo "no process can enter $0"; exit 77; }
  exec unshare --cgroup bash "$1/tests/daemon/systemd/root.sh" "$2" "$1" "$3" "$4"' \
  "$group" "$project" "$binary" "$stage" "$packages" </dev/null &
machine=$!
wait $machine
ended=$?
machine=
cat "$stage"/said/* 2>/dev/null
exit $ended
