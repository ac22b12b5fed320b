//! The role that is delivered, against what the client calls.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::official::sent;

/// The right to a call, as the list of operations of Microsoft.Compute has it.
fn action(call: &str) -> &'static str {
    match call {
        "disks.get" | "disks.list" => "Microsoft.Compute/disks/read",
        "disks.createOrUpdate" | "disks.update" => "Microsoft.Compute/disks/write",
        "disks.delete" => "Microsoft.Compute/disks/delete",
        "virtualMachines.get" => "Microsoft.Compute/virtualMachines/read",
        "virtualMachines.attachDetachDataDisks" => "Microsoft.Compute/virtualMachines/attachDetachDataDisks/action",
        "diskOperations.get" => "Microsoft.Compute/locations/diskOperations/read",
        "operations.get" => "Microsoft.Compute/locations/operations/read",
        call => panic!("no right is known of {call}"),
    }
}

#[test]
fn the_role_permits_what_the_client_calls_and_nothing_else() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/azure/role.json");
    let role: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let permitted: Vec<&str> = role["Actions"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let unique: BTreeSet<&str> = permitted.iter().copied().collect();
    assert_eq!(unique.len(), permitted.len());
    let needed: BTreeSet<&str> = sent().iter().map(|sent| action(&sent.call)).collect();
    assert_eq!(unique, needed);
    assert_eq!(role["DataActions"], Value::Array(Vec::new()));
}
