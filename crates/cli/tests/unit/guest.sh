# Starts systemd in a guest, with the unit and nothing else: $1 is the binary, $2 the unit, $3 the directory of inside.sh.
set -e
mount --make-rshared /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
units=/run/systemd/system
mkdir -p $units /etc/surgetank /var/lib/surgetank
# What is set up for this machine is none of this guest's.
rm -rf /etc/systemd/system/*
install -m 755 "$1" /usr/local/bin/surgetank
cp "$2" $units/surgetank.service
# A call that the filter refuses ends the service here, so that none is missed silently.
mkdir $units/surgetank.service.d
printf '[Service]\nSystemCallErrorNumber=kill\n' >$units/surgetank.service.d/filter.conf
install -m 600 /lab/token /etc/surgetank/token
{
    printf '[provider.host]\nurl = "%s"\nallow_plain = true\ntoken_file = "/etc/surgetank/token"\n' "$LAB_SERVICE"
    for export in ublk fuse nbd; do
        printf '[device.%s]\nbacking = "/dev/lab/%s"\nexport = "%s"\nbacking_limits.bandwidth = "33 MiB/s"\n' \
            $export $export $export
        printf '[device.%s.caching]\nvolume_type = "fast"\nbandwidth = "128 MiB/s"\ninitial_size = "32 MiB"\n' $export
        printf '[device.%s.policy]\nsize_grain = "16 MiB"\n' $export
    done
} >/etc/surgetank/surgetank.toml
printf '[Unit]\nDefaultDependencies=no\nWants=lab.service\n' >$units/lab.target
cat >$units/lab.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh $3/inside.sh
StandardOutput=file:/lab/inside
StandardError=inherit
ExecStopPost=/bin/systemctl --force --force exit
END
# A process namespace of its own makes it the first process, as which it manages a system.
container=lab unshare --pid --fork --mount --propagation shared --mount-proc /lib/systemd/systemd --system \
    --unit=lab.target --log-target=console --show-status=0 </dev/null >/lab/systemd 2>&1 || true
cat /lab/inside
test -e /lab/done
