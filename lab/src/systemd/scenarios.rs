//! What happens to the guest, step after step. Every file that was synced is read again after each of them.

use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::guest::Machine;
use super::readme::{self, Steps};
use super::report::{Measured, Report};

/// Served again after kill -9, at most.
const KILLED_MAX_S: f64 = 2.0;
/// A reboot, from the command until everything is served again, at most.
const REBOOT_MAX_S: f64 = 60.0;
/// After this a shutdown counts as hanging.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(400);

/// Devices beside the README's: for a btrfs, for a volume group, and for somebody who mounts by hand.
const MORE: &str = r#"
cat >>/etc/surgetank/surgetank.toml <<'END'

[device.tree]
backing = "/dev/disk/by-id/virtio-tree"
export = "auto"
backing_limits.bandwidth = "33 MiB/s"
caching = { provider = "local", volume_type = "fast", initial_size = "1 GiB" }
[device.group]
backing = "/dev/disk/by-id/virtio-group"
export = "auto"
backing_limits.bandwidth = "33 MiB/s"
caching = { provider = "local", volume_type = "fast", initial_size = "1 GiB" }
[device.hand]
backing = "/dev/disk/by-id/virtio-hand"
export = "auto"
backing_limits.bandwidth = "33 MiB/s"
caching = { provider = "local", volume_type = "fast", initial_size = "1 GiB" }
END
set -ex
echo 'devices { global_filter = [ "r|^/dev/disk/by-id/virtio-group$|" ] }' >>/etc/lvm/lvmlocal.conf
systemctl daemon-reload
systemctl restart surgetank
udevadm settle
mountpoint -q /srv/data
mkdir -p /srv/tree /srv/group /srv/hand
mkfs.btrfs -q /dev/disk/by-id/surgetank-tree
mkfs.ext4 -q /dev/disk/by-id/surgetank-hand
pvcreate -q /dev/disk/by-id/surgetank-group
vgcreate -q elastic /dev/disk/by-id/surgetank-group
lvcreate -q -W n -l 100%FREE -n volume elastic
mkfs.ext4 -q /dev/elastic/volume
udevadm settle
grep ' /srv/data ' /etc/fstab | sed 's/surgetank-data/surgetank-tree/;s,/srv/data,/srv/tree,;s/ext4/btrfs/' >>/etc/fstab
echo '/dev/elastic/volume /srv/group ext4 noauto,x-systemd.wanted-by=multi-user.target 0 0' >>/etc/fstab
systemctl daemon-reload
mount /srv/tree
mount /srv/group
"#;

/// Kills the daemon, and says how long it took until a read was answered that came after its death. The reader is waited
/// for, not run: nothing ends a process that waits for a device.
const KILL: &str = r#"
old=$(systemctl show -p MainPID --value surgetank)
[ "$old" -gt 1 ] || { echo "there is no daemon to kill"; exit 1; }
device=$(readlink -f /dev/disk/by-id/surgetank-data)
rm -f /run/lab-served
begin=$(date +%s%N)
kill -9 "$old"
{
    while [ -e "/proc/$old" ]; do sleep 0.01; done
    dd if="$device" of=/dev/null bs=4k skip=77777 count=1 iflag=direct status=none && date +%s%N >/run/lab-served.new
    mv /run/lab-served.new /run/lab-served
} >/dev/null 2>&1 &
for wait in $(seq 600); do
    [ ! -e /run/lab-served ] || break
    sleep 0.1
done
read -r end </run/lab-served && echo "$begin $end" | awk '{ print ($2 - $1) / 1e9 }'
"#;

/// A service that writes, and somebody's session that stands in each file system and holds a file of it.
const OPEN_FILES: &str = r#"
mount /dev/disk/by-id/surgetank-hand /srv/hand
surgetank boost data --wait
for place in data tree group hand; do
    systemd-run -q sh -c "exec 3>>/srv/$place/open; while echo line >&3; do sleep 0.2; done"
    systemd-run -q --scope --slice user -p After=systemd-user-sessions.service \
        sh -c "exec 3>>/srv/$place/held; cd /srv/$place; exec sleep 10000" >/dev/null 2>&1 &
done
sleep 1
"#;

/// Where the journal of the seconds around each kill goes.
const KILLS_JOURNAL: &str = "kills.log";

/// The names of the places where files are.
const MOUNTED: [&str; 3] = ["data", "tree", "group"];

/// The guest's user.
pub struct User<'a, 'b> {
    machine: Machine<'a>,
    report: &'b mut Report,
    steps: Steps,
    /// How many rounds of files were written.
    rounds: u32,
}

impl<'a, 'b> User<'a, 'b> {
    /// Whoever uses this machine.
    pub fn new(machine: Machine<'a>, report: &'b mut Report) -> Self {
        Self { machine, report, steps: Steps { there: Vec::new(), back: Vec::new() }, rounds: 0 }
    }

    /// Whether it could be done; how long it took is another matter.
    fn step(&mut self, name: &str, step: impl FnOnce(&mut Self) -> anyhow::Result<Measured>) -> bool {
        let result = step(self);
        let done = result.is_ok();
        self.report.add(name, result);
        done
    }

    /// A step without which the others mean nothing.
    fn first(&mut self, name: &str, step: impl FnOnce(&mut Self) -> anyhow::Result<Measured>) -> anyhow::Result<()> {
        ensure!(self.step(name, step), "{name}: nothing else is tried");
        Ok(())
    }

    /// Everything, in order. An error is no result: the machine cannot go on.
    pub fn run(mut self, short: bool) -> anyhow::Result<()> {
        self.steps = readme::steps(include_str!("../../../README.md"))?;
        self.first("boots", |user| {
            let boot_s = user.machine.boot(&[])?;
            Ok(Measured { took_s: Some(boot_s), ..Measured::default() })
        })?;
        self.first("the README's installation and first use", Self::install)?;
        // The first caching volume has the README's size; later ones have what was used of it.
        self.step("kill -9 in a boost of 10 GiB, a writer busy", |user| user.kill(&["data"], true));
        self.step("kill -9, file systems idle", |user| user.kill(&["data"], false));
        if short {
            self.step("a reboot", |user| user.reboot("true", &["data"]));
            return Ok(());
        }
        self.first("btrfs, LVM, and a disk for the hand", |user| {
            user.machine.must(MORE)?;
            user.written(&MOUNTED)
        })?;
        self.step("kill -9 of four devices, idle", |user| user.kill(&MOUNTED, false));
        self.step("kill -9 of four devices, three in boosts, writers busy", |user| user.kill(&MOUNTED, true));
        self.step("a reboot with mounts of fstab, LVM on top", |user| user.reboot("true", &MOUNTED));
        self.step("a reboot with a mount by hand", |user| {
            user.reboot("mount /dev/disk/by-id/surgetank-hand /srv/hand && echo x >/srv/hand/x", &MOUNTED)
        });
        self.step("a reboot with all of that and open files, in a boost", |user| user.reboot(OPEN_FILES, &MOUNTED));
        self.step("a power cut in a boost", Self::power_cut);
        self.step("a boot without the fast disk, which has the newest data", Self::missing_newest_data);
        self.step("a boot without the fast disk, nothing dirty", Self::missing_fast_disk);
        self.step("a boot with a broken configuration", Self::broken_configuration);
        self.step("the way back", Self::way_back);
        Ok(())
    }

    fn install(&mut self) -> anyhow::Result<Measured> {
        for act in self.steps.there.clone() {
            self.machine.must(&act.script())?;
        }
        // The export that the README promises here: nothing of ours is in the path while the device is calm.
        self.machine.must("test \"$(findmnt -n -o SOURCE /srv/data)\" = /dev/mapper/data")?;
        self.machine.must("surgetank boost data --wait && surgetank status | grep -q '10.0 GiB'")?;
        self.written(&["data"])
    }

    /// Writes and syncs a file in each of these places.
    fn written(&mut self, places: &[&str]) -> anyhow::Result<Measured> {
        self.rounds += 1;
        for place in places {
            self.machine.must(&format!(
                "set -e; cd /srv/{place}; dd if=/dev/urandom of=synced-{0} bs=1M count=4 conv=fsync status=none
                sha256sum synced-{0} >>/var/tmp/sums-{place}; sync /var/tmp/sums-{place}; sync -f .",
                self.rounds
            ))?;
        }
        Ok(Measured::default())
    }

    /// Reads what was synced, past the page cache.
    fn check(&mut self, places: &[&str]) -> anyhow::Result<()> {
        for place in places {
            let checked = format!(
                "mountpoint -q /srv/{place} && echo 3 >/proc/sys/vm/drop_caches && cd /srv/{place} && \
                 sha256sum --quiet -c /var/tmp/sums-{place}"
            );
            self.machine.must(&checked).with_context(|| format!("/srv/{place}"))?;
        }
        Ok(())
    }

    /// Kills the daemon; how long nobody answers.
    fn kill(&mut self, places: &[&str], busy: bool) -> anyhow::Result<Measured> {
        self.written(places)?;
        if busy {
            self.machine.must("surgetank boost data --wait")?;
            for place in places {
                self.machine.must(&format!(
                    "systemd-run -q --unit busy-{place} sh -c 'while :; do dd if=/dev/zero of=/srv/{place}/busy bs=1M \
                     count=32 conv=fsync; done'"
                ))?;
            }
            self.machine.must("sleep 3")?;
        }
        let took_s = self.machine.number(KILL).context("not served again within a minute")?;
        self.machine.keep_journal(KILLS_JOURNAL)?;
        if busy {
            for place in places {
                self.machine.must(&format!("systemctl is-active busy-{place} && systemctl stop busy-{place}"))?;
            }
        }
        self.machine.must("systemctl start surgetank && surgetank status")?;
        self.check(places)?;
        if busy {
            self.machine.must("surgetank drain data --wait")?;
        }
        Ok(Measured::within(took_s, KILLED_MAX_S, ""))
    }

    /// Reboots after this; everything must be there again, and nothing may have been cut off.
    fn reboot(&mut self, before: &str, places: &[&str]) -> anyhow::Result<Measured> {
        self.machine.must(before)?;
        self.written(places)?;
        let [down_s, took_s] = self.machine.reboot(SHUTDOWN_TIMEOUT)?;
        self.check(places)?;
        let note = format!("{down_s:.1} s of it going down");
        let last = self.machine.must("journalctl -b -1 -o cat --no-pager | tail -n 400")?;
        if let Some(line) = last.lines().find(|line| line.contains("Failed unmounting")) {
            bail!("not clean: {line} ({took_s:.1} s, {note})");
        }
        let recovered =
            self.machine.run("journalctl -k -b -o cat --no-pager | grep -E 'recovery complete|orphan|log replay'")?;
        ensure!(recovered.status != 0, "not clean: {} ({took_s:.1} s, {note})", recovered.said.trim());
        Ok(Measured::within(took_s, REBOOT_MAX_S, note))
    }

    fn power_cut(&mut self) -> anyhow::Result<Measured> {
        self.machine.must("surgetank boost data --wait")?;
        self.written(&MOUNTED)?;
        self.machine.cut_power();
        let took_s = self.machine.boot(&[])?;
        self.check(&MOUNTED)?;
        self.machine.must("surgetank drain data --wait")?;
        Ok(Measured { took_s: Some(took_s), ..Measured::default() })
    }

    /// Stopped in a boost, then without the disk of the caching volumes: the newest data is not there, so the device is not
    /// either, and everybody hears of it. Nothing is written to the disk underneath or to the root.
    fn missing_newest_data(&mut self) -> anyhow::Result<Measured> {
        self.machine.must("surgetank boost data --wait")?;
        self.written(&["data"])?;
        let took_s = self.reboot_without_fast_disk()?;
        self.machine.must("! mountpoint -q /srv/data")?;
        self.machine.must("! mount /srv/data")?;
        self.machine.must(
            "! systemd-run -q --wait -p RequiresMountsFor=/srv/data touch /srv/data/x && test ! -e /srv/data/x",
        )?;
        self.machine.must("systemctl poweroff --no-block")?;
        self.machine.wait_off(SHUTDOWN_TIMEOUT)?;
        self.machine.boot(&[])?;
        self.check(&MOUNTED)?;
        self.machine.must("surgetank drain data --wait")?;
        Ok(Measured { took_s: Some(took_s), ..Measured::default() })
    }

    /// The same when nothing is dirty: the kernel maps the devices without the daemon, which cannot start.
    fn missing_fast_disk(&mut self) -> anyhow::Result<Measured> {
        self.machine.must("for device in data tree group hand; do surgetank drain $device --wait || exit; done")?;
        let took_s = self.reboot_without_fast_disk()?;
        self.machine.must("! systemctl is-active -q surgetank")?;
        self.check(&MOUNTED)?;
        self.written(&MOUNTED)?;
        self.machine.must("systemctl poweroff --no-block")?;
        self.machine.wait_off(SHUTDOWN_TIMEOUT)?;
        self.machine.boot(&[])?;
        self.check(&MOUNTED)?;
        self.machine.must("surgetank boost data --wait && surgetank drain data --wait")?;
        Ok(Measured { took_s: Some(took_s), ..Measured::default() })
    }

    fn reboot_without_fast_disk(&mut self) -> anyhow::Result<f64> {
        self.machine.must("systemctl poweroff --no-block")?;
        self.machine.wait_off(SHUTDOWN_TIMEOUT)?;
        self.machine.boot(&["nvme"])
    }

    /// Whoever mounts the clean disk itself gets it.
    fn broken_configuration(&mut self) -> anyhow::Result<Measured> {
        self.machine.must("surgetank status; cp /etc/surgetank/surgetank.toml /var/tmp/good.toml")?;
        self.machine.must("sed -i 's/^backing = /bakcing = /' /etc/surgetank/surgetank.toml")?;
        let [_, took_s] = self.machine.reboot(SHUTDOWN_TIMEOUT)?;
        self.machine.must("mount /dev/disk/by-id/virtio-data /srv/data")?;
        self.check(&["data"])?;
        self.machine
            .must("umount /srv/data; cp /var/tmp/good.toml /etc/surgetank/surgetank.toml; systemctl daemon-reload")?;
        self.machine.reboot(SHUTDOWN_TIMEOUT)?;
        self.check(&MOUNTED)?;
        Ok(Measured { took_s: Some(took_s), ..Measured::default() })
    }

    fn way_back(&mut self) -> anyhow::Result<Measured> {
        self.machine.must("umount /srv/tree /srv/group && vgchange -q -an elastic")?;
        for act in self.steps.back.clone() {
            self.machine.must(&act.script())?;
        }
        self.check(&["data"])?;
        Ok(Measured::default())
    }
}
