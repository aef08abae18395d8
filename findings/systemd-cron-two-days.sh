#!/bin/sh
# systemd-cron 1.15.19 (Debian 12) runs a job on fewer days than its own manual has for the same line.
#
# `30 4 1,15 * 5` is the example of crontab(5), also of the copy in this package: the 1st, the 15th, and every Friday. The
# generator makes `Fri *-*-1,15` of it, and systemd needs both: a Friday that is the 1st or the 15th. There is
# no warning. The generator reads the crontab here through a copy with another path for /etc.
#
# Consequence: a machine that moves from cron to systemd-cron runs this job 4 times in 2027 instead of 73.
# Remedy: one line for the dates and one for the day of the week.
#
# Output: 1.15.19-5 systemd 252
#         30 4 1,15 * 5 from 2026-12-31: Fri *-*-1,15 4:30:00
#         2027-01-01 2027-01-15 2027-10-01 2027-10-15
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 .
apt-get download -qq systemd-cron=1.15.19-5 2>/dev/null
dpkg -x systemd-cron_*.deb package
version=$(dpkg-deb -f systemd-cron_*.deb Version)
echo "$version systemd $(systemd-analyze --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')"
mkdir -p etc/cron.d timers
echo '30 4 1,15 * 5 root true' >etc/cron.d/job
sed "s|'/etc/|'$folder/etc/|g; s|'/var/|'$folder/var/|g" \
  package/lib/systemd/system-generators/systemd-crontab-generator >generator
python3 generator timers
calendar=$(sed -n 's/^OnCalendar=//p' timers/cron-job-*.timer)
days=$(TZ=UTC systemd-analyze calendar --base-time='2026-12-31' --iterations=4 "$calendar" |
  sed -n 's/.*\(2027-[0-9-]*\) 04:30:00 UTC$/\1/p' | sort -u | paste -sd' ')
echo "30 4 1,15 * 5 from 2026-12-31: $calendar"
echo "$days"
[ "$calendar" = 'Fri *-*-1,15 4:30:00' ] || { echo changed >&2; exit 1; }
[ "$days" = '2027-01-01 2027-01-15 2027-10-01 2027-10-15' ] || { echo changed >&2; exit 1; }
zcat package/usr/share/man/man5/crontab.5.gz | grep -q 'plus every Friday'
