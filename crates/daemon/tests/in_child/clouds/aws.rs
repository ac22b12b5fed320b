//! AWS: a fake of EC2, and volumes that are NVMe disks, as on instances of the Nitro system.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::fakes::ec2::{INSTANCE, REGION};
use surgetank_provider::fakes::{FakeEc2, Sent, Settings};
use surgetank_provider::{SystemClock, tag};

use super::plugging::Shows;
use super::{HOST, Host, Section, check_calls};

/// What a guest does whose daemon rents from EC2, and all calls of that.
fn on_ebs(does: impl FnOnce(&Host, &Section)) -> Option<Vec<Sent>> {
    let host = Host::new()?;
    let second = Duration::from_secs(1);
    // A guest takes 5 s and more to release a disk, and EC2 says that it is detached after that.
    let settings =
        Settings { create: second, attach: second, detach: 12 * second, delete: second, ..Settings::default() };
    let fake = FakeEc2::start(Arc::new(SystemClock), settings);
    let (id, secret) = fake.key(FakeEc2::account());
    let file = host.path("credentials");
    fs::write(&file, format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let provider = format!(
        "[provider.aws]\nregion = \"{REGION}\"\ninstance = \"{INSTANCE}\"\nendpoint = \"{}\"\ncredentials_file = \"{}\"\n\
         reads_per_s = 1000\nwrites_per_s = 1000",
        fake.url().replace("127.0.0.1", HOST),
        file.display()
    );
    let qemu = host.qemu();
    // As EBS shows it: the volume's id without its hyphen.
    let plug = |volume: &str| qemu.plug(volume, Bytes::from_gib(1), Shows::Nvme(&volume.replacen('-', "", 1)));
    let caching = "volume_type = \"gp3\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"";
    qemu.follow(|| fake.attached(), plug, || does(&host, &Section { provider, caching }));
    assert!(qemu.count() > 0);
    assert_eq!(fake.volumes(), 0, "volumes are left");
    Some(fake.take_sent())
}

#[test]
fn volumes_of_ebs_are_disks_of_a_guest_and_none_is_left() {
    on_ebs(Host::cycle);
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_burst_on_ext4_is_boosted_by_a_volume_of_ebs_and_every_byte_is_there() {
    let Some(sent) = on_ebs(Host::demonstrate) else { return };
    // What logs in and sweeps is no boost's.
    let owner = format!("tag:{}", tag::OWNER);
    let is_sweep = |sent: &Sent| sent.parameters.get("Filter.1.Name") == Some(&owner);
    let ours = sent.iter().filter(|sent| sent.action != "DescribeInstances" && !is_sweep(sent));
    check_calls(ours.map(|sent| &*sent.action), ["CreateTags", "DetachVolume", "DeleteVolume"], 12);
}
