//! What `make cloud-aws` and its like do on somebody's account: the contract of a provider, a burst of a device, a budget, and a reaper
//! at the end. In the tests the account is a fake.

#![allow(clippy::print_stderr, reason = "a run on an account says what it does")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/hypervisor.rs"]
mod hypervisor;
mod purse;
mod run;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use surgetank_model::volume_type::Provision;
use surgetank_provider::fakes::FakeAzure;
use surgetank_provider::{CreateVolume, Provider as _, ProviderError, SystemClock, Tags, tag};

use common::tables::{Loop, Tables};
use common::{Ends, MIB, Machine, eventually};
use hypervisor::{Hypervisor, Plugs as _, settings};
use purse::{BUDGET_USD, Paying, Purse};
use run::Run;

/// Which cloud, the file whose section of it is used, and what is rented there if not the default.
const CLOUD: &str = "SURGETANK_CLOUD";
const CONFIG: &str = "SURGETANK_CLOUD_CONFIG";
const TYPE: &str = "SURGETANK_CLOUD_TYPE";

/// Where a run keeps the tokens of what it rents, for the next one if it is ended from outside.
fn tokens(cloud: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cloud-{cloud}.tokens"))
}

fn of_environment() -> Result<(), String> {
    let of = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let cloud =
        of(CLOUD).ok_or("which cloud is not said: use `make cloud-aws`, cloud-gce, cloud-azure or cloud-openstack")?;
    let file = PathBuf::from(of(CONFIG).ok_or("no configuration is named: write CONFIG=FILE")?);
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let run = Run::new(&cloud, &text, of(TYPE).as_deref(), Duration::from_secs(2))
        .map_err(|why| format!("{}: {why}", file.display()))?;
    run.all(tokens(&cloud), None)
}

#[test]
#[ignore = "rents volumes of an account, for at most 0.10 USD: make cloud-aws CONFIG=FILE, and so on"]
fn on_an_account() {
    if let Err(why) = of_environment() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

/// A fake of Azure, whose disks are loop devices. `None` where there are none.
fn on_a_fake(test: impl FnOnce(&Machine, &FakeAzure, &Hypervisor<'_, FakeAzure>, &Run, &Tables)) {
    let machine = Machine::new();
    if Loop::over(&machine.backing("probe", MIB)).is_none() {
        eprintln!("skipped: no loop device can be had (needs root)");
        return;
    }
    let moment = Duration::from_millis(20);
    let fake = FakeAzure::start(Arc::new(SystemClock), settings(moment));
    fake.set_tag_time(moment);
    let tables = || Tables::new(machine.path("tables"));
    let hypervisor = Hypervisor::new(&fake, tables(), machine.path("images"));
    let is_done = AtomicBool::new(false);
    let run = Run::new("azure", &fake.section(machine.directory.path()), None, moment).unwrap().of_no_patience();
    std::thread::scope(|scope| {
        scope.spawn(|| hypervisor.follow(&is_done, |_| ()));
        let _over = Ends(&is_done);
        test(&machine, &fake, &hypervisor, &run, &tables());
        eventually("no disk is left", || hypervisor.is_empty());
    });
    assert_eq!(fake.disks(), 0, "disks are left");
    assert_eq!(hypervisor.foreign_written(), 0, "disks of others were written to");
}

#[test]
fn a_run_holds_the_contract_serves_a_burst_and_leaves_nothing() {
    on_a_fake(|machine, _, hypervisor, run, tables| {
        let tokens = machine.path("tokens");
        run.all(tokens.clone(), Some(tables.disks())).unwrap();
        assert!(hypervisor.count() > 1, "the contract and the burst have attached disks");
        assert!(!tokens.exists(), "nothing is left to reap");
    });
}

fn request(run: &Run, token: &str) -> CreateVolume {
    let tags = [(tag::OWNER, "somebody"), (tag::TOKEN, token), (tag::DIRTY_EPOCH, "1")];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (volume_type, size) = run.rentable();
    CreateVolume { token: token.to_owned(), volume_type, size, tags: Tags::from(tags) }
}

/// As after a run that was ended from outside.
#[test]
fn what_a_run_before_has_left_is_reaped_dirty_or_attached() {
    on_a_fake(|machine, fake, _, run, _| {
        let tokens = machine.path("tokens");
        let paying = run.open(&tokens).unwrap();
        for token in ["one", "two"] {
            paying.create(&request(run, token)).unwrap();
        }
        let id = paying.create(&request(run, "one")).unwrap().0.id;
        while paying.attach(&id).is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(paying);
        assert_eq!((fake.disks(), tokens.exists()), (2, true));
        run.reap(tokens).unwrap();
    });
}

#[test]
fn a_run_rents_for_its_budget_and_no_more() {
    on_a_fake(|machine, fake, _, run, _| {
        let tokens = machine.path("tokens");
        let (volume_type, size) = run.rentable();
        let purse = Arc::new(Purse::open("azure", &volume_type, Provision::default(), size, tokens.clone()).unwrap());
        let paying = Paying { provider: run.provider().unwrap(), purse: purse.clone() };
        let larger = surgetank_model::Bytes::from_gib(1 << 16);
        let id = paying.create(&request(run, "one")).unwrap().0.id;
        let refused = paying.grow(&id, larger).unwrap_err();
        assert!(matches!(&refused, ProviderError::Invalid(why) if why.contains("budget")), "{refused}");
        let (usd, count) = purse.spent();
        assert!(usd > 0.0 && usd < BUDGET_USD && count == 1, "{usd} {count}");
        // Volumes that have no price are counted.
        let unknown =
            Arc::new(Purse::open("azure", "unknown", Provision::default(), size, machine.path("others")).unwrap());
        let paying = Paying { provider: run.provider().unwrap(), purse: unknown.clone() };
        let rented = (0..100).take_while(|token| paying.create(&request(run, &format!("t{token}"))).is_ok()).count();
        assert_eq!((rented, fake.disks()), (60, 61));
        let none = Some(Duration::ZERO);
        assert_eq!(
            unknown.reap(&*paying.provider, common::TIMEOUT, Duration::from_millis(50), none),
            Vec::<String>::new()
        );
        run.reap(tokens).unwrap();
    });
}

#[test]
fn what_is_wrong_with_a_configuration_is_told() {
    let told = |cloud: &str, text: &str, kind: Option<&str>| match Run::new(cloud, text, kind, Duration::ZERO) {
        Ok(_) => panic!("{cloud} {text:?}"),
        Err(why) => why,
    };
    assert_eq!(told("azure", "", None), "there is no section [provider.azure]: write one");
    assert_eq!(told("moon", "", None), "the cloud \"moon\" is none of aws, gce, azure and openstack");
    assert!(told("azure", "[provider", None).contains("is no TOML"));
    let openstack = "[provider.openstack]\ncloud = \"x\"\n";
    assert_eq!(told("openstack", openstack, None), "which volume type to rent is not known: write TYPE=NAME");
    assert!(told("aws", "[provider.aws]\n", Some("no-such")).contains("no-such"));
}
