#!/usr/bin/env bash
# The root of a separate machine, with the packaged files at their paths; then starts systemd as its first
# process. Only outside.sh may run it.
# Usage: root.sh BINARY PROJECT STAGE PACKAGES
set -u
binary=$1 project=$2 stage=$3 root=$3/root packages=$4
[ $$ = 1 ] || { echo "this is for the first process of a machine"; exit 1; }
skip() { echo "$1"; exit 77; }
sealed=nosuid,nodev,noexec
mount -t tmpfs -o mode=755 tmpfs "$root" && cd "$root" || skip "nothing can be mounted here"
mkdir -p usr etc var/tmp var/log run tmp dev proc sys old root home said
chmod 1777 tmp var/tmp
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
if [ -n "$packages" ]; then
  # Writes to /usr end with the machine; it has none of this machine's units.
  mkdir over over/upper over/work packages
  mount -t overlay -o "lowerdir=/usr,upperdir=over/upper,workdir=over/work" overlay usr || skip "there is no overlay file system here"
  rm -rf usr/lib/systemd/system && mkdir usr/lib/systemd/system || skip "an overlay file system here does not forget"
  rm -f usr/sbin/policy-rc.d
  mount --bind "$packages" packages && mount -o remount,bind,ro packages || exit 1
else
  # A mount point for the binary in /usr, which is otherwise this machine's and read-only.
  mkdir -p "$stage/usr/bin" && touch "$stage/usr/bin/tidegate"
  mount -t overlay -o "ro,lowerdir=$stage/usr:/usr" overlay usr || skip "there is no overlay file system here"
  mount --bind "$binary" usr/bin/tidegate || exit 1
fi
mount --bind "$stage/said" said || exit 1
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev && mkdir dev/shm dev/pts
for name in null zero full random urandom; do touch dev/$name && mount --bind /dev/$name dev/$name; done
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts && ln -s pts/ptmx dev/ptmx
mount -t proc -o $sealed proc proc || skip "no /proc can be had here"
# Kernel settings, shared by all machines, are read-only: a manager raises limits there at boot.
for name in sys irq bus fs sysrq-trigger; do
  [ -e proc/$name ] || continue
  mount --bind proc/$name proc/$name && mount -o remount,bind,ro,$sealed proc/$name || exit 1
done
mount -t sysfs -o ro,$sealed sysfs sys && mount -t cgroup2 -o $sealed cgroup2 sys/fs/cgroup ||
  skip "no control groups of its own can be had here"
# If version 1 controllers count CPU time (they have a number then), the daemon can read them, too.
for name in cpu cpuacct cpuset; do
  awk -v name=$name '$1 == name && $2 > 0 { had = 1 } END { exit !had }' proc/cgroups || continue
  mkdir -p groups/$name && mount -t cgroup -o $sealed,$name cgroup groups/$name 2>/dev/null || continue
  mount -o remount,bind,ro,$sealed groups/$name || exit 1
done

mkdir -p etc/systemd/system etc/systemd/generators
cp /etc/ld.so.cache etc/ && touch etc/fstab
echo 7469646567617465746573740000000a >etc/machine-id
printf 'passwd: files\ngroup: files\n' >etc/nsswitch.conf
printf '%s\n' root:x:0:0::/root:/bin/bash web:x:1234:1234::/:/bin/sh other:x:1235:1235::/:/bin/sh \
  nobody:x:65534:65534::/:/usr/sbin/nologin >etc/passwd
printf '%s\n' root:x:0: web:x:1234: other:x:1235: nogroup:x:65534: >etc/group
if [ -n "$packages" ]; then
  # dpkg knows only the dependencies of our package as installed.
  mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers var/log/apt
  mkdir -p etc/apt/{apt.conf,sources.list,preferences}.d var/cache/apt/archives/partial var/lib/apt/lists/partial
  echo 'APT::Sandbox::User "root";' >etc/apt/apt.conf.d/machine && touch etc/apt/sources.list
  needed='libc6|libgcc-s1|gcc-12-base|libcrypt1|systemd|init-system-helpers|perl-base|dpkg'
  awk -v RS= -v ORS='\n\n' "/^Package: ($needed)\n/" /var/lib/dpkg/status | sed -E '/^(Pre-)?Depends:|^Conffiles:|^ \/etc/d' >var/lib/dpkg/status
  for name in $(sed -n 's/^Package: //p' var/lib/dpkg/status); do
    cp /var/lib/dpkg/info/$name.list var/lib/dpkg/info/ 2>/dev/null || cp /var/lib/dpkg/info/$name:*.list var/lib/dpkg/info/
  done
else
  mkdir -p etc/tidegate/rules
  cp -r "$project/systemd/sysusers.d" "$project/systemd/tmpfiles.d" etc/
  cp "$project"/systemd/tidegate.{service,socket} etc/systemd/system/
  cp "$project"/tests/daemon/systemd/probe.py root/
fi
cp "${packages:-$project/tests/daemon/systemd}/checks.sh" root/
for target in sysinit basic sockets shutdown multi-user; do
  printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target >etc/systemd/system/$target.target
done
cat >etc/systemd/system/checks.service <<'END'
[Unit]
Description=What the test looks at
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash /root/checks.sh
StandardOutput=append:/said/facts
StandardError=append:/said/facts
END

pivot_root . old && cd / && umount -l /old && rmdir /old || exit 1
ip link set lo up
# Removes all permissions of privileged processes on the kernel, the clock and the machine.
exec env -i container=tidegate-test PATH=/usr/bin:/usr/sbin SYSTEMD_LOG_TARGET=null SYSTEMD_UNIT_PATH=/etc/systemd/system:/lib/systemd/system \
  SYSTEMD_GENERATOR_PATH=/etc/systemd/generators SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/etc/systemd/generators \
  setpriv --bounding-set -sys_time,-sys_module,-sys_rawio,-sys_boot,-syslog,-wake_alarm,-mac_admin,-mac_override,-audit_control \
  /usr/lib/systemd/systemd --system --unit=checks.service
