#!/usr/bin/env bash
# The RPM in a separate machine, by Debian's rpm; prints its findings as lines `name=value`. Dependencies are not
# checked: this rpm knows no other installed package.
set -u
export LC_ALL=C.UTF-8 HOME=/root
fact() { echo "$1=$2"; }
there() { [ -e "$1" ] && echo yes || echo no; }
states() { echo "$(systemctl is-active tidegate.socket),$(systemctl is-active tidegate.service)"; }
enabled() { echo "$(systemctl is-enabled tidegate.socket),$(systemctl is-enabled tidegate.service)"; }
package() { rpm --nodeps --force-debian "$@" >>/said/rpm 2>&1 </dev/null; echo $?; }
mkdir -p /var/lib/rpm
fact installs "$(package -i /packages/first.rpm)"
fact enabled "$(enabled)"
fact states "$(states)"
fact rules "$(stat -c %U:%G:%a /etc/tidegate/rules)"
systemctl start tidegate.socket tidegate.service
fact started "$(states)"
fact user "$(ps -o user= -p "$(systemctl show -p MainPID --value tidegate.service)")"
born=$(stat -c %i /run/tidegate/tidegate.sock) before=$(systemctl show -p MainPID --value tidegate.service)
sed -i 's/^mode: .*/mode: enforce/' /etc/tidegate/tidegate.yaml
fact upgraded "$(package -U /packages/next.rpm)"
fact same_socket "$([ "$(stat -c %i /run/tidegate/tidegate.sock)" = "$born" ] && echo yes)"
fact restarted "$([ "$(systemctl show -p MainPID --value tidegate.service)" != "$before" ] && echo yes)"
fact after "$(states)"
fact kept_settings "$(grep -c '^mode: enforce' /etc/tidegate/tidegate.yaml)"
fact removes "$(package -e tidegate)"
fact stopped "$(states)"
fact left "$(there /usr/bin/tidegate),$(there /etc/tidegate/tidegate.yaml.rpmsave)"
