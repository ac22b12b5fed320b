//! OpenStack: Keystone, Cinder and Nova themselves.

use std::sync::Arc;

use surgetank_model::Bytes;

use super::plugging::{GuestsQemu, Shows};
use super::{HOST, Host};
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

#[test]
fn openstacks_volumes_are_disks_of_a_guest_and_none_is_left() {
    let Some(cloud) = cloud() else { return };
    let Some(host) = Host::new() else { return };
    let tenant = cloud.tenant_for(HOST);
    tenant.faults.lock().unwrap().hypervisor = Some(Arc::new(host.qemu()));
    let provider = format!(
        "[provider.openstack]\nclouds_file = \"{}\"\ncloud = \"of-credential\"\nserver = \"{}\"\nreads_per_s = 1000\nwrites_per_s = 1000",
        tenant.file.display(),
        tenant.server
    );
    host.run(&provider, "volume_type = \"__DEFAULT__\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"");
    assert_eq!(tenant.volumes(), 0, "volumes are left");
}
