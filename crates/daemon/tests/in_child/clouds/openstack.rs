//! OpenStack: Keystone, Cinder and Nova themselves.

use std::sync::Arc;

use surgetank_model::Bytes;

use super::plugging::{GuestsQemu, Shows};
use super::{HOST, Host, Section, check_calls};
use crate::cloud::cloud;
use crate::proxy::Hypervisor;

/// What each volume has.
const SIZE: Bytes = Bytes::from_gib(1);

/// As libvirt does it: the serial is the volume's id. Each second disk is a SCSI one.
impl Hypervisor for GuestsQemu {
    fn plug(&self, volume: &str) {
        let shows = if self.count().is_multiple_of(2) { Shows::Virtio(volume) } else { Shows::Scsi(volume) };
        Self::plug(self, volume, SIZE, shows);
    }

    fn unplug(&self, volume: &str) {
        Self::unplug(self, volume);
    }
}

/// What a guest does whose daemon rents from OpenStack, and all calls of that but Keystone's.
fn on_openstack(does: impl FnOnce(&Host, &Section)) -> Option<Vec<String>> {
    let (cloud, host) = (cloud()?, Host::new()?);
    let tenant = cloud.tenant_for(HOST);
    tenant.faults.lock().unwrap().hypervisor = Some(Arc::new(host.qemu()));
    let provider = format!(
        "[provider.openstack]\nclouds_file = \"{}\"\ncloud = \"of-credential\"\nserver = \"{}\"\nreads_per_s = 1000\nwrites_per_s = 1000",
        tenant.file.display(),
        tenant.server
    );
    let caching = "volume_type = \"__DEFAULT__\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"";
    does(&host, &Section { provider, caching });
    assert_eq!(tenant.volumes(), 0, "volumes are left");
    let seen = std::mem::take(&mut tenant.faults.lock().unwrap().seen);
    Some(seen)
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn openstacks_volumes_are_disks_of_a_guest_and_none_is_left() {
    on_openstack(Host::cycle);
}

/// A call without the ids in it.
fn named(call: &str) -> String {
    let is_id = |part: &str| part.len() == 36 && part.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let parts = call.split(['/', '?']).map(|part| if is_id(part) { "ID" } else { part });
    parts.filter(|part| !part.contains('=')).collect::<Vec<_>>().join("/")
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_burst_on_ext4_is_boosted_by_a_volume_of_openstack_and_every_byte_is_there() {
    let Some(seen) = on_openstack(Host::demonstrate) else { return };
    // A list of what has our owner's tag is a sweep's, and no boost's.
    let is_sweep = |call: &String| call.contains("metadata=") && call.contains("owner");
    let ours: Vec<String> = seen.iter().filter(|call| !is_sweep(call)).map(|call| named(call)).collect();
    let marks = [
        "POST /cinder/v3/volumes/ID/metadata",
        "DELETE /nova/v2.1/servers/ID/os-volume_attachments/ID",
        "DELETE /cinder/v3/volumes/ID",
    ];
    check_calls(ours.iter().map(|call| &**call), marks, 15);
}
