//! Google: a fake of Compute Engine, and disks that show a name and no serial.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::SystemClock;
use surgetank_provider::fakes::gce::{INSTANCE, PROJECT, ZONE};
use surgetank_provider::fakes::{FakeGce, Settings};

use super::plugging::Shows;
use super::{HOST, Host};

#[test]
fn persistent_disks_are_disks_of_a_guest_and_none_is_left() {
    let Some(host) = Host::new() else { return };
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
    qemu.follow(|| fake.attached(), plug, || host.run(&provider, caching));
    assert!(qemu.count() > 0);
    assert_eq!(fake.disks(), 0, "disks are left");
}
