//! Google: a fake of Compute Engine, and disks that show a name and no serial.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::SystemClock;
use surgetank_provider::fakes::gce::{INSTANCE, PROJECT, Sent, ZONE};
use surgetank_provider::fakes::{FakeGce, Settings};

use super::plugging::Shows;
use super::{HOST, Host, Section, check_calls};

/// What a guest does whose daemon rents from Compute Engine, and all calls of that.
fn on_gce(does: impl FnOnce(&Host, &Section)) -> Option<Vec<Sent>> {
    let host = Host::new()?;
    let second = Duration::from_secs(1);
    // A guest takes 5 s and more to release a disk, and Compute Engine says that it is detached after that.
    let settings =
        Settings { create: second, attach: second, detach: 12 * second, delete: second, ..Settings::default() };
    let fake = FakeGce::start(Arc::new(SystemClock), settings);
    let provider = format!(
        "[provider.gce]\nproject = \"{PROJECT}\"\nzone = \"{ZONE}\"\ninstance = \"{INSTANCE}\"\nendpoint = \"{}\"\n\
         credential_command = [\"/bin/echo\", \"{}\"]\nreads_per_s = 1000\nwrites_per_s = 1000",
        fake.url().replace("127.0.0.1", HOST),
        fake.token()
    );
    let qemu = host.qemu();
    let plug = |disk: &str| qemu.plug(disk, Bytes::from_gib(10), Shows::Google(disk));
    let caching = "volume_type = \"pd-ssd\"\ninitial_size = \"10 GiB\"\nmax_size = \"10 GiB\"";
    qemu.follow(|| fake.attached(), plug, || does(&host, &Section { provider, caching }));
    assert!(qemu.count() > 0);
    assert_eq!(fake.disks(), 0, "disks are left");
    Some(fake.take_sent())
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn persistent_disks_are_disks_of_a_guest_and_none_is_left() {
    on_gce(Host::cycle);
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_burst_on_ext4_is_boosted_by_a_persistent_disk_and_every_byte_is_there() {
    let Some(sent) = on_gce(Host::demonstrate) else { return };
    // What sweeps is no boost's: a list of disks by their owner, after one of operations.
    let is_sweep = |sent: &Sent| sent.call == "disks.list" && sent.query["filter"].contains("owner");
    let is_before = |at: usize| sent[at].call == "zoneOperations.list" && sent.get(at + 1).is_some_and(is_sweep);
    let ours = sent.iter().enumerate().filter(|(at, sent)| !is_sweep(sent) && !is_before(*at));
    let marks = ["disks.setLabels", "instances.detachDisk", "disks.delete"];
    check_calls(ours.map(|(_, sent)| &*sent.call), marks, 15);
}
