//! The policy that is delivered, against what the client calls.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use surgetank_provider::tag;

use crate::official::sent;

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        several => several.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect(),
    }
}

#[test]
fn the_policy_allows_what_the_client_calls_and_nothing_else() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/aws/policy.json");
    let policy: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let statements = policy["Statement"].as_array().unwrap();
    let allowed: BTreeSet<String> = statements
        .iter()
        .inspect(|statement| assert_eq!(statement["Effect"], "Allow"))
        .flat_map(|statement| texts(&statement["Action"]))
        .map(|action| action.strip_prefix("ec2:").unwrap().to_owned())
        .collect();
    let called: BTreeSet<String> = sent().into_iter().map(|sent| sent.action).collect();
    assert_eq!(called, allowed);
    // Whatever changes something is bound to what is marked, and creations mark it.
    for statement in statements {
        let changes = texts(&statement["Action"]).into_iter().any(|action| !action.starts_with("ec2:Describe"));
        let condition = &statement["Condition"]["StringEquals"];
        let is_bound = condition["ec2:ResourceTag/surgetank:managed"] == "true"
            || condition["aws:RequestTag/surgetank:managed"] == "true"
            || condition["ec2:CreateAction"] == "CreateVolume";
        assert!(is_bound || !changes, "{statement}");
    }
    // The tags that a daemon changes later.
    let keys = statements.iter().map(|statement| &statement["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"]);
    let keys: BTreeSet<&str> = keys.filter(|keys| !keys.is_null()).flat_map(texts).collect();
    assert_eq!(keys, BTreeSet::from([tag::DIRTY_EPOCH, tag::HOST, tag::OWNER]));
}
