//! The role that is delivered, against what the client calls.

use std::collections::BTreeSet;
use std::path::Path;

use crate::official::sent;

/// The permissions of a call, as its page in the reference of Compute Engine has them.
fn permissions(call: &str) -> &'static [&'static str] {
    match call {
        // Labels that are set with the disk need their own.
        "disks.insert" => &["compute.disks.create", "compute.disks.setLabels"],
        "disks.get" => &["compute.disks.get"],
        "disks.list" => &["compute.disks.list"],
        "disks.setLabels" => &["compute.disks.setLabels"],
        "disks.resize" => &["compute.disks.resize"],
        "disks.delete" => &["compute.disks.delete"],
        "instances.attachDisk" => &["compute.instances.attachDisk", "compute.disks.use"],
        "instances.get" => &["compute.instances.get"],
        "instances.detachDisk" => &["compute.instances.detachDisk"],
        // Whoever waits gets the operation, and needs no other right.
        "zoneOperations.get" | "zoneOperations.wait" => &["compute.zoneOperations.get"],
        "zoneOperations.list" => &["compute.zoneOperations.list"],
        call => panic!("no permissions are known of {call}"),
    }
}

#[test]
fn the_role_permits_what_the_client_calls_and_nothing_else() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/gce/role.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, included) = text.split_once("includedPermissions:\n").unwrap();
    let included: Vec<&str> = included
        .lines()
        .filter_map(|line| line.strip_prefix("- "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let permitted: BTreeSet<&str> = included.iter().copied().collect();
    assert_eq!(permitted.len(), included.len());
    let needed: BTreeSet<&str> = sent().iter().flat_map(|sent| permissions(&sent.call)).copied().collect();
    assert_eq!(permitted, needed);
}
