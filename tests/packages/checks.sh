#!/usr/bin/env bash
# The package in a separate machine, under a system manager: installed, upgraded, removed, purged; prints its findings as lines
# `name=value`. Only the manager that tests/daemon/systemd/root.sh starts may run it. /packages has the packages: first.deb, next.deb.
set -u
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root
path=/run/tidegate/tidegate.sock log=/var/log/said settings=/etc/tidegate/tidegate.yaml
fact() { echo "$1=$2"; }
show() { systemctl show -p "$2" --value "$1"; }
main() { show tidegate.service MainPID; }
states() { echo "$(systemctl is-active tidegate.socket),$(systemctl is-active tidegate.service)"; }
enabled() { echo "$(systemctl is-enabled tidegate.socket),$(systemctl is-enabled tidegate.service)"; }
socket() { stat -c %i $path 2>/dev/null; }
there() { [ -e "$1" ] && echo yes || echo no; }
is_installed() { dpkg-query -W -f '${db:Status-Status},${Version}' tidegate 2>/dev/null; }
# Runs dpkg, with all output in a file.
package() { dpkg --force-confold "$@" >$log 2>&1 </dev/null; local ended=$?; cat $log >>/said/dpkg; echo $ended; }
eventually() { for _ in $(seq 200); do "$@" && { echo yes; return; }; sleep 0.05; done; echo no; }
# As a user with access to the socket.
member() { setpriv --reuid=web --regid=web --init-groups timeout 6 tidegate "$@" 2>&1; }

fact installs "$(package -i /packages/first.deb)"
fact installed "$(is_installed)"
fact states "$(states)"
fact enabled "$(enabled)"
fact socket "$(stat -c %U:%G:%a $path)"
fact mode "$(sed -n 's/^mode: //p' $settings)"
fact rules "$(stat -c %U:%G:%a /etc/tidegate/rules),$(ls -A /etc/tidegate/rules | wc -l)"
fact runs_as "$(ps -o user= -p "$(main)")"
fact state_directory "$(stat -c %U:%a /var/lib/tidegate)"
fact check "$(tidegate check >/dev/null 2>&1; echo $?)"
fact verify "$(systemd-analyze verify tidegate.socket tidegate.service 2>&1 | grep -c tidegate)"
fact man "$(zcat /usr/share/man/man1/tidegate.1.gz | grep -c '^\.TH')"

# The installed settings refuse no request, whatever rules exist.
sed -i 's/^tidegate:.*:/&web/' /etc/group
printf 'domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, burst: 2}\n' >/etc/tidegate/rules/api.yaml
tidegate reload >/dev/null
fact shadow "$(member hit api user=u1 --cost 2 >/dev/null; member hit api user=u1 | head -n 1 | cut -d' ' -f1)"

# Upgraded under load with changed settings: every request gets a reply, and no token is granted twice.
sed -i 's/^mode: .*/mode: enforce/' $settings
systemctl restart tidegate.service
member hit api user=u2 --cost 2 >/dev/null
born=$(socket) before=$(main) asked=0 unanswered=0
# Requests use a copy of the program, which is replaced meanwhile, and wait as long as a busy machine may take.
install -m 755 /usr/bin/tidegate /asker
asker() { setpriv --reuid=web --regid=web --init-groups timeout 30 /asker "$@" 2>&1; }
package -i /packages/next.deb >/run/ended & upgrade=$!
while kill -0 $upgrade 2>/dev/null; do
  asked=$((asked + 1))
  reply=$(asker peek api user=u2 --timeout 20s --on-failure refuse)
  [[ $reply == *'per-user: 0 of 2'* ]] || { unanswered=$((unanswered + 1)); echo "$reply" >>/said/unanswered; }
done
fact upgrades "$(cat /run/ended)"
fact upgraded "$(is_installed)"
fact asked "$asked"
fact unanswered "$unanswered"
fact same_socket "$([ -n "$born" ] && [ "$(socket)" = "$born" ] && echo yes)"
fact restarted "$([ "$(main)" != "$before" ] && [ "$(main)" != 0 ] && echo yes)"
fact kept_settings "$(grep -c '^mode: enforce' $settings)"
fact offered_settings "$(there $settings.dpkg-dist)"
fact kept_counts "$(member hit api user=u2 --on-failure refuse | head -n 1 | cut -d' ' -f1)"

# Settings that the daemon would not start with: it keeps running, and the installation prints the error.
cp $settings /run/good && echo 'mod: enforce' >>$settings
before=$(main)
fact upgrades_all_the_same "$(package -i /packages/first.deb)"
fact left_running "$([ "$(main)" = "$before" ] && grep -c 'was not restarted' $log)"
cp /run/good $settings

# Stopped by hand, the last of the kill switches: an upgrade does not undo it.
systemctl stop tidegate.socket tidegate.service
fact upgrades_stopped "$(package -i /packages/next.deb)"
fact stays_stopped "$(states)"
fact note_gone "$(there /run/tidegate-stopped)"
systemctl start tidegate.socket tidegate.service
# Disabled: remains disabled.
systemctl disable --now tidegate.socket tidegate.service 2>/dev/null
fact upgrades_disabled "$(package -i /packages/first.deb)"
fact stays_disabled "$(enabled),$(states)"
systemctl enable --now tidegate.socket tidegate.service 2>/dev/null

# As in docs/install.md.
[ -e /packages/install.sh ] && { bash /packages/install.sh >/said/install 2>&1; fact install_page $?; }

fact removes "$(package -r tidegate)"
fact removed "$(is_installed)"
fact stopped "$(states)"
fact program_gone "$(there /usr/bin/tidegate)"
fact kept "$(there $settings),$(there /etc/tidegate/rules/api.yaml),$(there /var/lib/tidegate/tables)"

fact installs_again "$(package -i /packages/next.deb)"
fact states_again "$(states)"
fact kept_counts_again "$(member hit api user=u2 --on-failure refuse | head -n 1 | cut -d' ' -f1)"

fact purges "$(package -P tidegate)"
fact purged "$(is_installed)"
fact purged_settings "$(there $settings)"
fact purged_state "$(there /var/lib/tidegate),$(there /run/tidegate)"
fact rules_of_people "$(there /etc/tidegate/rules/api.yaml)"
fact user_stays "$(getent passwd tidegate | cut -d: -f1)"
fact links_left "$(find /etc/systemd /var/lib/systemd -name '*tidegate*' | wc -l)"
# Without files of the administrator, no files remain.
rm /etc/tidegate/rules/api.yaml
fact installs_last "$(package -i /packages/first.deb)"
fact purges_last "$(package -P tidegate)"
fact left "$(find /etc /var/lib /usr /lib -xdev -name '*tidegate*' -not -path '/var/lib/dpkg/*' | wc -l)"
