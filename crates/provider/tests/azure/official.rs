//! Azure's own client: it uses the fake, and its models check what our client sends and what the fake answers. Without it these tests are
//! left out, and say so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_provider::fakes::azure::{GROUP, LOCATION, MACHINE, SUBSCRIPTION, Sent};
use surgetank_provider::fakes::{FakeAzure, Settings};
use surgetank_provider::{
    Account as _, AzureConfig, CreateVolume, Named, Provider, SystemClock, VolumeState, contract, tag,
};

use crate::account::{Account, request, request_with_token};
use crate::faked::official::{self, run, said};
use crate::json;

fn python() -> Option<PathBuf> {
    let missing = "is no client of Azure's of the pinned version: `scripts/setup test` installs it";
    official::python("azure", "import importlib.util as u; u.find_spec('azure.mgmt.compute').name", missing)
}

#[test]
fn azures_own_client_lives_through_a_disks_life_on_the_fake() {
    let Some(python) = python() else { return };
    let short = Duration::from_millis(300);
    let settings = Settings {
        create: short,
        attach: short,
        detach: short,
        delete: short,
        grow: short,
        page: 2,
        ..Settings::default()
    };
    let fake = FakeAzure::start(Arc::new(SystemClock), settings);
    fake.let_everybody_in();
    let checked = said(run(&python, "azure/run_client.py", &[&fake.url(), SUBSCRIPTION, GROUP, MACHINE, LOCATION], ""));
    assert!(checked > 60, "{checked}");
    assert_eq!(fake.disks(), 0);
}

/// All calls that the client makes.
pub fn sent() -> Vec<Sent> {
    let account = Account::new(Settings { page: 5, ..Settings::default() });
    contract::run(&account);
    let config: AzureConfig =
        toml::from_str("[types.premium-ssd-v2]\niops = \"4000 IOPS\"\nbandwidth = \"200 MB/s\"").unwrap();
    let provider = account.open_as(AzureConfig { types: config.types, ..account.config() });
    for _ in 0..9 {
        let wanted = CreateVolume { volume_type: "premium-ssd-v2".to_owned(), ..request("many") };
        provider.create(&wanted).unwrap();
    }
    for (key, value) in [(tag::OWNER, "many"), ("k", "it's <odd> & * ? \\"), (tag::DEVICE, "array:\u{e4}")] {
        provider.list(key, value).unwrap();
    }
    let id = provider.create(&request_with_token("a")).unwrap().0.id;
    assert_eq!(account.reaches(&provider, &id, VolumeState::Available).id, id);
    let rented = provider.volumes().unwrap().into_iter().find(|rented| rented.volume.id == id).unwrap();
    assert_eq!(provider.volume(&id), Ok(Some(rented.clone())));
    assert_eq!(provider.machine(&rented.machine.unwrap()), Ok(Named::Machine { since_ms: None }));
    account.fake.take_sent()
}

#[test]
fn whatever_the_client_sends_is_in_the_models_of_azures_own_client() {
    let Some(python) = python() else { return };
    let sent = sent();
    for call in [
        "disks.createOrUpdate",
        "disks.get",
        "disks.list",
        "disks.update",
        "disks.delete",
        "virtualMachines.get",
        "virtualMachines.attachDetachDataDisks",
        "diskOperations.get",
        "operations.get",
    ] {
        assert!(sent.iter().any(|there| there.call == call), "{call} is not sent");
    }
    assert!(sent.iter().any(|there| there.query.contains_key("$skiptoken")), "pages are asked for");
    let line = |there: &Sent| json!({ "call": there.call, "method": there.method, "path": there.path, "query": there.query, "body": there.body });
    let lines: String = sent.iter().map(|there| format!("{}\n", line(there))).collect();
    let check = |lines: &str| run(&python, "azure/check_requests.py", &[], lines);
    assert_eq!(said(check(&lines)), sent.len() as u64);
    // A planted mistake is found.
    let of = |call: &str| line(sent.iter().find(|there| there.call == call).unwrap());
    let planted = |call: &str, pointer: &str, key: &str, value| json::planted(of(call), pointer, key, value);
    let attached = "/body/dataDisksToAttach/0";
    for wrong in [
        planted("disks.createOrUpdate", "/body/properties", "diskSizeGb", json!(10)),
        planted("disks.createOrUpdate", "/body/properties", "diskSizeGB", json!("10")),
        planted("disks.createOrUpdate", "/body/properties", "provisioningState", json!("Succeeded")),
        planted("disks.createOrUpdate", "/body/sku", "name", json!("Premium")),
        planted("disks.createOrUpdate", "/body/tags", "k", json!(1)),
        planted("disks.createOrUpdate", "/body", "location", Value::Null),
        planted("disks.update", "/body", "labels", json!({})),
        planted("virtualMachines.attachDetachDataDisks", attached, "caching", json!("Off")),
        planted("virtualMachines.attachDetachDataDisks", attached, "unit", json!(1)),
        planted("disks.get", "", "method", json!("POST")),
        planted("disks.list", "/query", "$filter", json!("x")),
        planted(
            "disks.get",
            "",
            "path",
            json!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/volumes/d"),
        ),
    ] {
        assert!(check(&format!("{wrong}\n")).is_err(), "{wrong}");
    }
}
