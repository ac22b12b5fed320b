//! The client of OpenStack against Keystone, Cinder and Nova themselves; without them these tests are left out, and say so.

mod cloud;
mod http;
#[path = "../faked/life.rs"]
mod life;
mod proxy;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::{
    Account as _, Change, CreateVolume, DiskIdentity, Named, OpenStackConfig, OpenStackProvider, Provider,
    ProviderConfig, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, tag,
};

use cloud::{Tenant, cloud, nonce, uuid};
use http::{Reply, serve};
use life::Life;
use proxy::{Fault, TIMEOUT};

/// The type that each Cinder has.
const TYPE: &str = "__DEFAULT__";
/// How often a test looks before it stops waiting.
const LOOKS_MAX: u32 = 600;

fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

fn request(owner: &str) -> CreateVolume {
    let tags = Tags::from([(tag::OWNER.to_owned(), owner.to_owned())]);
    CreateVolume { token: nonce(), volume_type: TYPE.to_owned(), size: Bytes::from_gib(1), tags }
}

/// Waits until a volume is so.
fn reaches(provider: &dyn Provider, id: &VolumeId, state: VolumeState) -> VolumeDescription {
    for _ in 0..LOOKS_MAX {
        match provider.describe(id) {
            Ok(volume) if volume.state == state => return volume,
            Ok(_) | Err(ProviderError::Transient(_) | ProviderError::Throttled { .. }) => pause(),
            Err(error) => panic!("{id:?} on its way to {state:?}: {error}"),
        }
    }
    panic!("{id:?} does not become {state:?}: {:?}", provider.describe(id));
}

/// Waits until what was described serves for no change any more.
fn nothing_is_recent() {
    std::thread::sleep(Duration::from_millis(1600));
}

/// Waits until so many volumes of an owner are there.
fn counts(provider: &dyn Provider, owner: &str, count: usize) -> Vec<VolumeDescription> {
    for _ in 0..LOOKS_MAX {
        let listed = provider.list(tag::OWNER, owner).unwrap();
        if listed.len() == count {
            return listed;
        }
        pause();
    }
    panic!("{count} volumes are expected, and there are {:?}", provider.list(tag::OWNER, owner));
}

struct Account(Tenant);

impl Subject for Account {
    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.0.open())
    }

    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        self.0.fail_next();
        Some(self.open())
    }

    fn pass_time(&self) {
        pause();
    }

    fn rentable(&self) -> (String, Bytes) {
        (TYPE.to_owned(), Bytes::from_gib(1))
    }
}

#[test]
fn the_contract_holds_against_openstack_itself() {
    let Some(cloud) = cloud() else { return };
    contract::run(&Account(cloud.tenant()));
}

/// A boost begins with 10 calls, and one more for each second in which something is on the way.
#[test]
#[allow(clippy::print_stdout, reason = "calls are counted")]
fn a_boost_takes_fifteen_calls_at_most() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    // A daemon has logged in and swept.
    assert_eq!(provider.list(tag::OWNER, "a"), Ok(Vec::new()));
    tenant.faults.lock().unwrap().seen.clear();
    let id = provider.create(&request("a")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    provider.attach(&id).unwrap();
    reaches(&provider, &id, VolumeState::Attached);
    provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")).unwrap();
    let told = provider.describe(&id).unwrap();
    assert_eq!(told.tags.get(tag::DIRTY_EPOCH).map(String::as_str), Some("e"), "what was changed shows at once");
    provider.set_tag(&id, tag::DIRTY_EPOCH, None).unwrap();
    provider.detach(&id).unwrap();
    reaches(&provider, &id, VolumeState::Available);
    provider.delete(&id).unwrap();
    assert!((0..LOOKS_MAX).any(|_| {
        pause();
        matches!(provider.describe(&id), Err(ProviderError::NotFound(_)))
    }));
    let seen = tenant.faults.lock().unwrap().seen.clone();
    println!("{} calls a boost", seen.len());
    assert!(seen.len() <= 15, "{seen:?}");
}

#[test]
fn users_log_in_by_password_or_application_credential_and_wrong_ones_are_told_without_secrets() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    for name in ["of-password", "of-credential"] {
        let provider = OpenStackProvider::open(tenant.config(name)).unwrap();
        assert_eq!(provider.list(tag::OWNER, "nobody"), Ok(Vec::new()), "{name}");
        assert!(tenant.secrets.iter().all(|secret| !format!("{provider:?}").contains(secret)));
    }
    assert!(!tenant.may_see_limits(), "Cinder heeds the rules of the application credential");
    let text = std::fs::read_to_string(&tenant.file).unwrap();
    std::fs::write(&tenant.file, text.replace("/v3'", "/elsewhere/v3'")).unwrap();
    match tenant.open().list("a", "b") {
        Err(ProviderError::Transient(said)) => assert!(said.contains("check"), "{said}"),
        answer => panic!("the credentials are right: {answer:?}"),
    }
    let wrong = tenant.secrets.iter().fold(text, |text, secret| text.replace(secret, "wrong-secret"));
    std::fs::write(&tenant.file, wrong).unwrap();
    for name in ["of-password", "of-credential"] {
        match OpenStackProvider::open(tenant.config(name)).unwrap().list("a", "b") {
            Err(ProviderError::Invalid(text)) => {
                assert!(text.contains("refuses the credentials") && !text.contains("wrong-secret"), "{text}");
            }
            answer => panic!("{answer:?}"),
        }
    }
}

#[test]
fn a_refused_token_is_replaced_once_and_credentials_that_lead_elsewhere_are_refused() {
    let Some(cloud) = cloud() else { return };
    let (tenant, other) = (cloud.tenant(), cloud.tenant());
    let directory = tempfile::tempdir().unwrap();
    let config = tenant.config("of-credential");
    let start = || config.open(Some(directory.path())).unwrap();
    let provider = start();
    let id = provider.create(&request("a")).unwrap().0.id;
    // What is on the way is not asked for each time.
    reaches(&*provider, &id, VolumeState::Available);
    let refuse = |times| {
        let mut faults = tenant.faults.lock().unwrap();
        faults.scripted.extend(std::iter::repeat_n(("GET", "/volumes/", Fault::Unauthorized), times));
    };
    refuse(1);
    assert!(provider.describe(&id).is_ok(), "a new token does");
    tenant.faults.lock().unwrap().scripted.push_back(("GET", "/volumes/", Fault::UnauthorizedPage));
    assert!(provider.describe(&id).is_ok(), "whoever has refused the former one");
    refuse(2);
    assert!(matches!(provider.describe(&id), Err(ProviderError::Invalid(_))), "it is asked for once");
    let own = std::fs::read_to_string(&tenant.file).unwrap();
    let others = std::fs::read_to_string(&other.file).unwrap();
    let region = |text: &str| text.split('\'').nth(1).unwrap().to_owned();
    // The region alone, then the project as well.
    let moved =
        own.replace(&format!("region_name: '{}'", region(&own)), &format!("region_name: '{}'", region(&others)));
    for (text, why) in [(&moved, "Cinder's endpoint"), (&others, "the project")] {
        std::fs::write(&tenant.file, text).unwrap();
        nothing_is_recent();
        refuse(2);
        // None of them says that a volume is gone which is there.
        let restarted = start();
        let calls: [&dyn Fn() -> Result<(), ProviderError>; 4] = [
            &|| provider.describe(&id).map(drop),
            &|| provider.delete(&id).map(drop),
            &|| restarted.describe(&id).map(drop),
            &|| restarted.delete(&id).map(drop),
        ];
        for call in calls {
            match call() {
                Err(ProviderError::Transient(said)) => {
                    assert!(said.contains(why) && said.contains("restart the daemon"), "{said}");
                }
                answer => panic!("{answer:?}"),
            }
        }
        assert!(other.faults.lock().unwrap().seen.is_empty(), "nothing is asked there");
        std::fs::write(&tenant.file, &own).unwrap();
        assert!(provider.describe(&id).is_ok(), "it is restored");
    }
}

#[test]
fn whatever_answers_in_place_of_cinder_says_nothing_of_a_volume() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let config = OpenStackConfig { timeout: Span(TIMEOUT), ..tenant.config("of-credential") };
    let (unhurried, hurried) = (tenant.open(), OpenStackProvider::open(config).unwrap());
    let id = unhurried.create(&request("a")).unwrap().0.id;
    reaches(&unhurried, &id, VolumeState::Available);
    nothing_is_recent();
    for fault in Fault::ALL.into_iter().filter(|fault| *fault != Fault::Unauthorized) {
        // The others are what they are on a machine that is busy, too.
        let provider = if fault == Fault::AnswerLate { &hurried } else { &unhurried };
        for _ in 0..3 {
            tenant.faults.lock().unwrap().scripted.push_back(("GET", "/volumes/", fault));
        }
        let answers = [
            provider.describe(&id).map(drop).unwrap_err(),
            provider.attach(&id).map(drop).unwrap_err(),
            provider.list(tag::OWNER, "a").map(drop).unwrap_err(),
        ];
        for error in answers {
            let text = error.to_string();
            assert!(text.len() < 700 && !text.contains(char::is_control), "{fault:?}: {text}");
            match error {
                ProviderError::Throttled { after, .. } => {
                    assert_eq!((fault, after), (Fault::Throttled, Some(Duration::from_secs(1))));
                }
                ProviderError::Transient(_) => assert_ne!(fault, Fault::Throttled),
                error => panic!("{fault:?}: {error:?}"),
            }
        }
    }
}

#[test]
fn a_creation_whose_answer_is_lost_is_found_and_one_that_comes_late_leaves_one_volume() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    for fault in [Fault::AnswerLost, Fault::BadGateway, Fault::Truncated] {
        let wanted = request(&format!("{fault:?}"));
        tenant.faults.lock().unwrap().scripted.push_back(("POST", "/volumes", fault));
        assert!(matches!(provider.create(&wanted), Err(ProviderError::Transient(_))), "{fault:?}");
        let (volume, change) = provider.create(&wanted).unwrap();
        assert_eq!(change, Change::Identity, "{fault:?}: it was made before");
        assert_eq!(counts(&provider, &wanted.tags[tag::OWNER], 1)[0].id, volume.id);
    }
    for (owner, is_younger_dirty) in [("late", false), ("dirty", true)] {
        let wanted = request(owner);
        tenant.faults.lock().unwrap().scripted.push_back(("POST", "/volumes", Fault::RequestLate));
        assert!(matches!(provider.create(&wanted), Err(ProviderError::Transient(_))));
        let (older, change) = provider.create(&wanted).unwrap();
        assert_eq!(change, Change::Changed, "the late one is not there yet");
        let both = counts(&provider, owner, 2);
        for volume in &both {
            reaches(&provider, &volume.id, VolumeState::Available);
        }
        let younger = both.into_iter().map(|volume| volume.id).find(|id| *id != older.id).unwrap();
        if is_younger_dirty {
            provider.set_tag(&younger, tag::DIRTY_EPOCH, Some("e")).unwrap();
        }
        let expected = if is_younger_dirty { younger } else { older.id };
        let (stays, change) = provider.create(&wanted).unwrap();
        assert_eq!((stays.id, change), (expected, Change::Identity), "the older one, but not before one with data");
        counts(&provider, owner, 1);
    }
}

#[test]
fn a_volume_of_the_same_name_that_has_other_tags_is_neither_adopted_nor_deleted() {
    let Some(cloud) = cloud() else { return };
    let provider = cloud.tenant().open();
    let wanted = request("a");
    // As a copy of it that somebody makes for a rescue: older and younger ones.
    let copy = CreateVolume { tags: Tags::from([(tag::OWNER.to_owned(), "b".to_owned())]), ..wanted.clone() };
    let (older, _) = provider.create(&copy).unwrap();
    reaches(&provider, &older.id, VolumeState::Available);
    let (ours, change) = provider.create(&wanted).unwrap();
    assert_eq!(change, Change::Changed);
    assert_ne!(ours.id, older.id);
    reaches(&provider, &ours.id, VolumeState::Available);
    let (again, change) = provider.create(&wanted).unwrap();
    assert_eq!((&again.id, change), (&ours.id, Change::Identity));
    assert_eq!(provider.describe(&older.id).unwrap().state, VolumeState::Available);
    assert_eq!(provider.create(&copy).unwrap().0.id, older.id);
    counts(&provider, "a", 1);
    counts(&provider, "b", 1);
}

#[test]
fn lists_have_all_pages_whatever_the_cloud_puts_on_one() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    let mut made: BTreeSet<VolumeId> = (0..9).map(|_| provider.create(&request("many")).unwrap().0.id).collect();
    let listed = |key: &str, value: &str| -> BTreeSet<VolumeId> {
        provider.list(key, value).unwrap().into_iter().map(|volume| volume.id).collect()
    };
    assert_eq!(listed(tag::OWNER, "many"), made);
    for fault in [Fault::Unavailable, Fault::Truncated, Fault::NoRoute, Fault::MarkerGone] {
        tenant.faults.lock().unwrap().scripted.push_back(("GET", "marker=", fault));
        let answer = provider.list(tag::OWNER, "many");
        assert!(matches!(answer, Err(ProviderError::Transient(_))), "all of them, or an error: {fault:?} {answer:?}");
        assert!(tenant.faults.lock().unwrap().scripted.is_empty());
    }
    let odd = made.pop_last().unwrap();
    // What is no plain text is compared here.
    for value in ["it's {\"a\": \"b\"}", "ä %_*", "100 % \\"] {
        assert_eq!(provider.set_tag(&odd, "k.a b", Some(value)), Ok(Change::Changed));
        assert_eq!(listed("k.a b", value), BTreeSet::from([odd.clone()]), "{value}");
    }
    assert_eq!(provider.set_tag(&odd, "k.a b", None), Ok(Change::Changed));
    assert_eq!(provider.set_tag(&odd, "k.a b", None), Ok(Change::Identity));
    assert!(
        matches!(provider.set_tag(&odd, "\u{e4}", Some("v")), Err(ProviderError::Invalid(_))),
        "no key of Cinder's"
    );
    assert!(listed(tag::OWNER, "man_").is_empty() && listed(tag::OWNER, "MANY").is_empty());
}

#[test]
fn quotas_are_told_as_quotas() {
    let Some(cloud) = cloud() else { return };
    let provider = cloud.tenant().open();
    let large = CreateVolume { size: Bytes::from_gib(600), ..request("quota") };
    assert!(matches!(provider.create(&large), Err(ProviderError::Quota(_))));
    let id = provider.create(&request("quota")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    assert!(matches!(provider.grow(&id, Bytes::from_gib(600)), Err(ProviderError::Quota(_))));
    let made = (1..20).try_for_each(|_| provider.create(&request("quota")).map(drop));
    assert_eq!(made, Ok(()));
    assert!(matches!(provider.create(&request("quota")), Err(ProviderError::Quota(_))), "the twenty-first");
}

#[test]
fn a_server_takes_so_many_disks_and_what_another_server_has_is_left_alone() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    let here = reaches(&provider, &id, VolumeState::Attached);
    assert_eq!(here.disk, Some(DiskIdentity::Serial(id.0.clone())), "the disk shows the first 20 characters of it");
    let config = OpenStackConfig { server: Some(uuid()), ..tenant.config("of-credential") };
    let other = OpenStackProvider::open(config).unwrap();
    let seen = other.describe(&id).unwrap();
    assert_eq!((seen.state, seen.is_located()), (VolumeState::Attached, false));
    for answer in [other.attach(&id), other.detach(&id)] {
        assert!(
            matches!(&answer, Err(ProviderError::Conflict { reason, .. }) if reason.contains(&tenant.server)),
            "{answer:?}"
        );
    }
    assert!(matches!(other.delete(&id), Err(ProviderError::Conflict { .. })));
    // As Nova is configured, it takes three beside its root disk.
    let refused = (0..4).find_map(|_| {
        let id = provider.create(&request("a")).unwrap().0.id;
        reaches(&provider, &id, VolumeState::Available);
        match provider.attach(&id) {
            Ok(Change::Changed) => {
                reaches(&provider, &id, VolumeState::Attached);
                None
            }
            Err(ProviderError::AttachLimit(_)) => Some(id),
            answer => panic!("{answer:?}"),
        }
    });
    assert_eq!(provider.describe(&refused.expect("a limit")).unwrap().state, VolumeState::Available);
}

#[test]
fn the_account_says_which_server_has_rented_a_volume_and_whether_it_is_there() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    let rented = provider.volume(&id).unwrap().unwrap();
    assert_eq!(provider.volumes(), Ok(vec![rented.clone()]));
    assert_eq!((rented.machine.as_ref(), rented.attached_to), (Some(&tenant.server), None));
    assert!(rented.created_ms.is_some(), "it tells how old it is");
    assert_eq!(provider.machine(&tenant.server), Ok(Named::Machine { since_ms: None }));
    assert_eq!(provider.machine(&uuid()), Ok(Named::Nobody));
    assert!(matches!(provider.machine("../servers"), Err(ProviderError::Invalid(_))));
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    reaches(&provider, &id, VolumeState::Attached);
    assert_eq!(provider.volume(&id).unwrap().unwrap().attached_to, Some(tenant.server.clone()));
    assert_eq!(provider.volume(&VolumeId(uuid())), Ok(None));
}

#[test]
fn the_metadata_service_says_which_server_this_machine_is() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let server = tenant.server.clone();
    let address = serve(move |request| match &*request.path {
        "/openstack/latest/meta_data.json" => Reply::json(200, &json!({ "uuid": server, "name": "guest" })).bytes(),
        _ => Reply::json(404, &json!(null)).bytes(),
    });
    let config =
        OpenStackConfig { server: None, metadata_url: format!("http://{address}"), ..tenant.config("of-credential") };
    let provider = OpenStackProvider::open(config).unwrap();
    let id = provider.create(&request("a")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    assert!(reaches(&provider, &id, VolumeState::Attached).is_located());
    let nowhere = serve(|_| Reply::json(200, &json!({ "uuid": "../.." })).bytes());
    let config =
        OpenStackConfig { server: None, metadata_url: format!("http://{nowhere}"), ..tenant.config("of-credential") };
    match OpenStackProvider::open(config).unwrap().describe(&id) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("server = \"ID\""), "{text}"),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn what_exceeds_the_rates_is_throttled_before_the_cloud_is_asked() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let config = OpenStackConfig { reads_per_s: 1, writes_per_s: 1, ..tenant.config("of-credential") };
    let provider = OpenStackProvider::open(config).unwrap();
    let absent = VolumeId(uuid());
    // Far more than the bucket holds, and all at once: each takes from it before it sends anything, however slow the machine is.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..60).map(|_| scope.spawn(|| provider.delete(&absent))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let mut carried_out = 0;
    for answer in answers {
        match answer {
            Ok(change) => {
                assert_eq!(change, Change::Identity);
                carried_out += 1;
            }
            Err(ProviderError::Throttled { after: Some(after), text }) => {
                assert!(after <= Duration::from_secs(1) && text.contains("writes_per_s"), "{after:?} {text}");
            }
            answer => panic!("{answer:?}"),
        }
    }
    assert!(carried_out < 60);
    assert_eq!(tenant.faults.lock().unwrap().seen.len(), carried_out, "of the others nothing was sent");
}

#[test]
fn a_growth_that_fails_is_left_to_the_operator_and_says_so() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let provider = tenant.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    reaches(&provider, &id, VolumeState::Available);
    let without = OpenStackProvider::open(OpenStackConfig { grow_in_place: false, ..tenant.config("of-credential") });
    let without = without.unwrap();
    assert!(!without.grows());
    assert!(matches!(without.grow(&id, Bytes::from_gib(2)), Err(ProviderError::Invalid(_))));
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    reaches(&provider, &id, VolumeState::Attached);
    tenant.fail_next();
    assert_eq!(provider.grow(&id, Bytes::from_gib(2)), Ok(Change::Changed));
    for _ in 0..LOOKS_MAX {
        match provider.detach(&id) {
            // While it is extending.
            Err(ProviderError::Conflict { reason, .. }) if !reason.contains("error_extending") => pause(),
            Err(ProviderError::Conflict { state, reason, .. }) => {
                assert_eq!(state, VolumeState::Attached);
                assert!(reason.contains("operator to reset the state to in-use"), "{reason}");
                return;
            }
            answer => panic!("{answer:?}"),
        }
    }
    panic!("it does not fail");
}

#[test]
#[allow(clippy::print_stdout, reason = "the faults that were met are told")]
fn life_cycles_amid_faults_end_with_nothing_rented() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let config = OpenStackConfig { timeout: Span(TIMEOUT), ..tenant.config("of-credential") };
    let provider = OpenStackProvider::open(config).unwrap();
    let mut random = Random::from_seed(7);
    for cycle in 0..6 {
        tenant.faults.lock().unwrap().by_chance = Some((Random::from_seed(cycle), 15));
        let life = Life {
            provider: &provider,
            request: request("cycles"),
            is_final: |error| match error {
                ProviderError::NotFound(_) | ProviderError::Invalid(_) => !error.to_string().contains("token"),
                _ => false,
            },
            disk: &|id| DiskIdentity::Serial(id.0.clone()),
            epochs: ["e", "e"],
            looks_max: LOOKS_MAX,
            pass: &pause,
        };
        life.live(&mut random);
    }
    tenant.faults.lock().unwrap().by_chance = None;
    // The sweep: what came late, or was made twice. It may take its time.
    let provider = tenant.open();
    for _ in 0..LOOKS_MAX {
        let is_late = tenant.faults.lock().unwrap().late > 0;
        let left = provider.list(tag::OWNER, "cycles").unwrap();
        for volume in &left {
            assert!(!volume.tags.contains_key(tag::DIRTY_EPOCH));
            let _ = provider.delete(&volume.id);
        }
        if left.is_empty() && !is_late {
            assert_eq!(tenant.volumes(), 0, "Cinder itself has none, whatever its name");
            let met = tenant.faults.lock().unwrap().met.clone();
            let count = |fault| met.iter().filter(|there| **there == fault).count();
            let counts: Vec<String> = Fault::ALL.iter().map(|fault| format!("{fault:?} {}", count(*fault))).collect();
            println!("6 lives; faults: {}", counts.join(", "));
            assert!(met.len() > 10, "{met:?}");
            return;
        }
        pause();
    }
    panic!("volumes stay: {:?}", provider.list(tag::OWNER, "cycles"));
}
