//! Google's own clients: one uses the fake, and the discovery document that comes with the other checks what our client sends and what
//! the fake answers. Without them these tests are left out, and say so.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_provider::fakes::gce::{INSTANCE, PROJECT, Sent, ZONE};
use surgetank_provider::fakes::{FakeGce, Settings};
use surgetank_provider::{Provider, SystemClock, VolumeState, contract, tag};

use crate::account::{Account, request};

/// The Python that has them; `None`, after a word about it: they are not installed.
#[allow(clippy::print_stderr, reason = "tests say what they skip")]
fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join("target/tools/gce-python");
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let pins = read(root.join("scripts/gce/requirements.txt"));
    let python = installed.join("bin/python");
    let loads = || {
        let found =
            "import importlib.util as u; [u.find_spec(m).name for m in ('googleapiclient', 'google.cloud.compute_v1')]";
        let status = Command::new(&python).args(["-c", found]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if pins.is_some() && read(installed.join("installed.txt")) == pins && loads() {
        return Some(python);
    }
    let place = installed.display();
    eprintln!(
        "skipped: at {place} are no clients of Google's of the pinned versions: `scripts/setup test` installs them"
    );
    None
}

/// What a script says of its input.
fn run(python: &Path, script: &str, arguments: &[&str], input: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gce").join(script);
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // It may have ended before it has read everything.
    let _ = writing.join().unwrap();
    output
}

fn said(output: &Output) -> u64 {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

#[test]
fn googles_own_client_lives_through_a_disks_life_on_the_fake() {
    let Some(python) = python() else { return };
    let short = Duration::from_millis(100);
    let settings =
        Settings { create: short, attach: short, detach: short, delete: short, grow: short, ..Settings::default() };
    let fake = FakeGce::start(Arc::new(SystemClock), settings);
    fake.let_everybody_in();
    let checked = said(&run(&python, "run_client.py", &[&fake.url(), PROJECT, ZONE, INSTANCE], ""));
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
        "zoneOperations.get",
        "zoneOperations.list",
        "zoneOperations.wait",
    ] {
        assert!(sent.iter().any(|there| there.call == call), "{call} is not sent");
    }
    assert!(sent.iter().any(|there| there.query.contains_key("pageToken")), "pages are asked for");
    let line = |there: &Sent| json!({ "call": there.call, "method": there.method, "path": there.path, "query": there.query, "body": there.body });
    let lines: String = sent.iter().map(|there| format!("{}\n", line(there))).collect();
    assert_eq!(said(&run(&python, "check_requests.py", &[], &lines)), sent.len() as u64);
    // A planted mistake is found.
    let of = |call: &str| line(sent.iter().find(|there| there.call == call).unwrap());
    let planted = |call: &str, pointer: &str, key: &str, value: Value| {
        let mut wrong = of(call);
        let place = if pointer.is_empty() { Some(&mut wrong) } else { wrong.pointer_mut(pointer) };
        place.unwrap()[key] = value;
        wrong
    };
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
        let output = run(&python, "check_requests.py", &[], &format!("{wrong}\n"));
        assert!(!output.status.success(), "{wrong}");
    }
}
