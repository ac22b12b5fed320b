//! The role that is delivered, against what the client calls.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use surgetank_provider::fakes::azure::action;

use crate::official::sent;

#[test]
fn the_role_permits_what_the_client_calls_and_nothing_else() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/azure/role.json");
    let role: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let permitted: Vec<&str> = role["Actions"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let unique: BTreeSet<&str> = permitted.iter().copied().collect();
    assert_eq!(unique.len(), permitted.len());
    let right = |call: &str| action(call).unwrap_or_else(|| panic!("no right is known of {call}"));
    let needed: BTreeSet<&str> = sent().iter().map(|sent| right(&sent.call)).collect();
    assert_eq!(unique, needed);
    assert_eq!(role["DataActions"], Value::Array(Vec::new()));
}
