# What the unit's service does for its users, under a systemd that has just started. It says what it does, and ends at
# the first thing that goes wrong.
set -ex

main() { systemctl show -p MainPID --value surgetank; }
wait_for() { for _ in $(seq 600); do if "$@"; then return 0; fi; sleep 0.1; done; echo "never: $*"; return 1; }
served() { wait_for test -e /run/surgetank/"$1" && blockdev --getsize64 "/run/surgetank/$1"; }
file_systems() { for export in ublk fuse; do "$1" $export; done; }

systemctl start surgetank || { cat /lab/systemd; false; }
pid=$(main)

# What is taken away: all but CAP_SYS_ADMIN and CAP_SYS_RESOURCE, new privileges, system calls, core dumps.
grep -q '^CapBnd:.0000000001200000$' /proc/$pid/status
grep -q '^CapEff:.0000000001200000$' /proc/$pid/status
grep -q '^NoNewPrivs:.1$' /proc/$pid/status
grep -q '^Seccomp:.2$' /proc/$pid/status
grep -q '^Max core file size *0 *0 ' /proc/$pid/limits
test "$(readlink /proc/$pid/ns/mnt)" != "$(readlink /proc/self/ns/mnt)"
cgroup=/sys/fs/cgroup$(cut -d: -f3 /proc/$pid/cgroup)
# Where the service's devices are the only ones: a disk can be opened, the kernel's log cannot, which root may elsewhere.
inside() { sh -c "echo \$\$ >$cgroup/cgroup.procs; exec $*"; }
inside dd if=/dev/lab/nbd of=/dev/null count=1
dd if=/dev/kmsg of=/dev/null count=0
if inside dd if=/dev/kmsg of=/dev/null count=0; then false; fi

# What is left: memory that stays in memory, and threads that the kernel does not have wait for their own device
# (PF_MEMALLOC_NOIO in the flags, the seventh field behind the name).
if grep -q '^VmLck:.* 0 kB$' /proc/$pid/status; then false; fi
flushers=0
for stat in /proc/$pid/task/*/stat; do
    set -- $(sed 's/.*) //' "$stat")
    test $(($7 & 0x80000)) = 0 || flushers=$((flushers + 1))
done
test $flushers -gt 0

# What is needed: disks and exports of every kind, and the queue of ublk's device set up through sysfs.
queue=/sys/block/$(basename "$(readlink -f /run/surgetank/ublk)")/queue
grep -q '\[none\]' $queue/scheduler
test "$(cat $queue/nr_requests)" -lt 128
make() { served "$1"; mkfs.ext4 -q "/run/surgetank/$1"; mkdir -p "/srv/$1"; }
attach() { served "$1"; mount "/run/surgetank/$1" "/srv/$1"; }
detach() { umount "/srv/$1"; }
file_systems make
file_systems attach

# Boosts, with disks that are plugged in while the service runs.
for export in ublk fuse nbd; do surgetank boost $export --wait; done
dd if=/dev/urandom of=/run/data bs=1M count=8 2>/dev/null
write() { cp /run/data "/srv/$1/data"; sync -f "/srv/$1/data"; }
check() { echo 3 >/proc/sys/vm/drop_caches; cmp /run/data "/srv/$1/data"; }
file_systems write
qemu-io -f raw -c 'write -P 7 1M 4M' -c flush 'nbd+unix:///?socket=/run/surgetank/nbd.sock'
file_systems check

# Killed in a boost. ublk's file system stays mounted; the loop device has lost its server and must go.
detach fuse
kill -9 $pid
wait_for sh -c '! systemctl is-active -q surgetank || test "$(systemctl show -p MainPID --value surgetank)" != '$pid
wait_for systemctl is-active -q surgetank
test "$(main)" != $pid
wait_for sh -c 'surgetank status >/dev/null'
attach fuse
file_systems check
test "$(ls -d /sys/block/loop*/loop | wc -l)" = 1
qemu-io -f raw -c 'read -P 7 1M 4M' 'nbd+unix:///?socket=/run/surgetank/nbd.sock' | tee /run/read
if grep -q failed /run/read; then false; fi

# An upgrade in place: a block device over fuse may not be in use.
detach fuse
pid=$(main)
systemctl reload surgetank
wait_for sh -c 'surgetank status | grep -q boost'
test "$(main)" = $pid
attach fuse
file_systems check

for export in ublk fuse nbd; do surgetank drain $export --wait; done
file_systems check
# What is unmounted out here is not kept busy in there: the devices go.
file_systems detach
systemctl stop surgetank
test "$(systemctl show -p Result --value surgetank)" = success
test -z "$(ls -d /sys/block/loop*/loop /sys/block/ublkb* 2>/dev/null)"
mkdir -p /srv/alone
for export in ublk fuse; do
    mount -o ro /dev/lab/$export /srv/alone
    cmp /run/data /srv/alone/data
    umount /srv/alone
done
touch /lab/done
