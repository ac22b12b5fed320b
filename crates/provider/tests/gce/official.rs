//! Google's own clients: one uses the fake, and the discovery document that comes with the other checks what our client sends and what
//! the fake answers. Without them these tests are left out, and say so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use surgetank_provider::fakes::gce::{INSTANCE, PROJECT, Sent, ZONE};
use surgetank_provider::fakes::{FakeGce, Settings};
use surgetank_provider::{Account as _, Named, Provider, SystemClock, VolumeState, contract, tag};

use crate::account::{Account, request};
use crate::faked::official::{self, run, said};
use crate::json;

fn python() -> Option<PathBuf> {
    let probe =
        "import importlib.util as u; [u.find_spec(m).name for m in ('googleapiclient', 'google.cloud.compute_v1')]";
    let missing = "are no clients of Google's of the pinned versions: `scripts/setup test` installs them";
    official::python("gce", probe, missing)
}

#[test]
fn googles_own_client_lives_through_a_disks_life_on_the_fake() {
    let Some(python) = python() else { return };
    let short = Duration::from_millis(100);
    let settings =
        Settings { create: short, attach: short, detach: short, delete: short, grow: short, ..Settings::default() };
    let fake = FakeGce::start(Arc::new(SystemClock), settings);
    fake.let_everybody_in();
    let checked = said(run(&python, "gce/run_client.py", &[&fake.url(), PROJECT, ZONE, INSTANCE], ""));
    assert!(checked > 30, "{checked}");
    assert_eq!(fake.disks(), 0);
}

/// All calls that the client makes.
pub fn sent() -> Vec<Sent> {
    let account = Account::new(Settings { page: 5, ..Settings::default() });
    contract::run(&account);
    let provider = account.open();
    for _ in 0..9 {
        provider.create(&request("many")).unwrap();
    }
    for (key, value) in [(tag::OWNER, "many"), ("k", "it's <odd> & * ? \\"), (tag::DEVICE, "array:\u{e4}")] {
        provider.list(key, value).unwrap();
    }
    let id = account.made(&provider, "a");
    assert_eq!(account.reaches(&provider, &id, VolumeState::Available).id, id);
    // What `gc --account` asks.
    let rented = provider.volumes().unwrap().into_iter().find(|rented| rented.volume.id == id).unwrap();
    assert_eq!(rented.machine.as_deref(), Some(INSTANCE));
    assert!(matches!(provider.machine(INSTANCE), Ok(Named::Machine { since_ms: Some(_) })));
    account.fake.take_sent()
}

#[test]
fn whatever_the_client_sends_is_in_the_discovery_document() {
    let Some(python) = python() else { return };
    let sent = sent();
    for call in [
        "disks.insert",
        "disks.get",
        "disks.list",
        "disks.setLabels",
        "disks.resize",
        "disks.delete",
        "instances.attachDisk",
        "instances.detachDisk",
        "instances.get",
        "zoneOperations.get",
        "zoneOperations.list",
        "zoneOperations.wait",
    ] {
        assert!(sent.iter().any(|there| there.call == call), "{call} is not sent");
    }
    assert!(sent.iter().any(|there| there.query.contains_key("pageToken")), "pages are asked for");
    let line = |there: &Sent| json!({ "call": there.call, "method": there.method, "path": there.path, "query": there.query, "body": there.body });
    let lines: String = sent.iter().map(|there| format!("{}\n", line(there))).collect();
    let check = |lines: &str| run(&python, "gce/check_requests.py", &[], lines);
    assert_eq!(said(check(&lines)), sent.len() as u64);
    // A planted mistake is found.
    let of = |call: &str| line(sent.iter().find(|there| there.call == call).unwrap());
    let planted = |call: &str, pointer: &str, key: &str, value| json::planted(of(call), pointer, key, value);
    for wrong in [
        planted("disks.insert", "/body", "sizeGB", json!("10")),
        planted("disks.insert", "/body", "sizeGb", json!("ten")),
        planted("disks.insert", "/body", "name", json!("A")),
        planted("instances.attachDisk", "/body", "mode", json!("RW")),
        planted("instances.attachDisk", "/query", "force", json!("true")),
        planted("instances.detachDisk", "", "query", json!({})),
        planted("disks.get", "", "method", json!("POST")),
        planted("disks.list", "/query", "maxResults", json!("many")),
        planted("disks.get", "", "path", json!("projects/p/disks/d")),
    ] {
        assert!(check(&format!("{wrong}\n")).is_err(), "{wrong}");
    }
}
