//! What `gc --account` does to the volumes of an account, against fakes of clouds.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_daemon::reaping::{Outcome, Reaped, Reaper, Reason, Rule, Seen};
use surgetank_daemon::{Config, accept_loss_offline};
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::fakes::azure::{GROUP, MACHINE, SUBSCRIPTION};
use surgetank_provider::fakes::gce::INSTANCE;
use surgetank_provider::fakes::{FakeAzure, FakeEc2, FakeGce, Fault, Settings};
use surgetank_provider::{
    Account, AwsConfig, AwsProvider, AzureConfig, AzureProvider, Change, Clock, CreateVolume, GceConfig, GceProvider,
    Machine, ManualClock, Provider as _, ProviderError, SystemClock, Tags, VolumeId, VolumeState, tag,
};

/// When the clock starts: signatures and tokens have times.
const START_MS: u64 = 1_795_859_878_000;
const HOUR: Duration = Duration::from_secs(3600);
const STEP: Duration = Duration::from_millis(500);

/// What a cloud calls things.
struct Names {
    /// The type that is rented.
    kind: &'static str,
    /// The calls that list volumes, delete one, and describe a machine.
    list: &'static str,
    delete: &'static str,
    machine: &'static str,
    /// The machine that takes the place of the first one.
    second: &'static str,
    /// A state in which a machine is not gone.
    stopped: &'static str,
}

/// A fake of a cloud.
trait Fake {
    fn names(&self) -> Names;
    fn open(&self, clock: Arc<ManualClock>) -> Box<dyn Account>;
    fn replace_machine(&self, name: &str, former: Option<&'static str>);
    fn attach_elsewhere(&self, id: &VolumeId, machine: &str);
    fn set_listing_lag(&self, lag: Duration);
    fn fault(&self, call: &'static str, fault: Fault);
    fn deny(&self, call: &'static str, is_denied: bool);
    fn count(&self) -> usize;
}

/// Nobody is throttled by itself.
const OFTEN: u32 = 1_000_000;
const TIMEOUT: Span = Span(Duration::from_secs(10));

/// What the fakes have in common but for their names.
macro_rules! fake {
    ($fake:ty, $config:ident, $provider:ident, $count:ident, $names:expr) => {
        impl Fake for $fake {
            fn names(&self) -> Names {
                $names
            }

            fn open(&self, clock: Arc<ManualClock>) -> Box<dyn Account> {
                let (endpoint, metadata_url, timeout) = (Some(self.url()), self.url(), TIMEOUT);
                let (reads_per_s, writes_per_s) = (OFTEN, OFTEN);
                let config =
                    $config { endpoint, metadata_url, timeout, reads_per_s, writes_per_s, ..$config::default() };
                Box::new($provider::open_at(config, clock).unwrap())
            }

            fn replace_machine(&self, name: &str, former: Option<&'static str>) {
                self.replace_instance(name, former);
            }

            fn attach_elsewhere(&self, id: &VolumeId, machine: &str) {
                self.attach_elsewhere(&id.0, machine);
            }

            fn set_listing_lag(&self, lag: Duration) {
                self.set(|settings| settings.listing_lag = lag);
            }

            fn fault(&self, call: &'static str, fault: Fault) {
                self.faults(|faults| faults.scripted.push_back((call, fault)));
            }

            fn deny(&self, call: &'static str, is_denied: bool) {
                self.deny(call, is_denied);
            }

            fn count(&self) -> usize {
                self.$count()
            }
        }
    };
}

fake!(
    FakeEc2,
    AwsConfig,
    AwsProvider,
    volumes,
    Names {
        kind: "gp3",
        list: "DescribeVolumes",
        delete: "DeleteVolume",
        machine: "DescribeInstances",
        second: "i-0000000000000002b",
        stopped: "stopped",
    }
);
fake!(
    FakeGce,
    GceConfig,
    GceProvider,
    disks,
    Names {
        kind: "pd-ssd",
        list: "disks.list",
        delete: "disks.delete",
        machine: "instances.get",
        second: "other-machine",
        stopped: "TERMINATED",
    }
);
fake!(
    FakeAzure,
    AzureConfig,
    AzureProvider,
    disks,
    Names {
        kind: "premium-ssd",
        list: "disks.list",
        delete: "disks.delete",
        machine: "virtualMachines.get",
        second: "other-machine",
        stopped: "Succeeded",
    }
);

/// A cloud, and what is there of it on the machine that calls now.
struct World {
    fake: Box<dyn Fake>,
    names: Names,
    clock: Arc<ManualClock>,
}

impl World {
    fn new<F: Fake + 'static>(start: fn(Arc<dyn Clock>, Settings) -> F) -> Self {
        let clock = Arc::new(ManualClock::at_ms(START_MS));
        let fake = start(clock.clone(), Settings::default());
        Self { names: fake.names(), fake: Box::new(fake), clock }
    }

    fn open(&self) -> Box<dyn Account> {
        self.fake.open(self.clock.clone())
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// A volume that the present machine has rented, with these tags beside its owner's and its token's.
    fn rented(&self, token: &str, tags: &[(&str, &str)]) -> VolumeId {
        let provider = self.open();
        let owner = (tag::OWNER.to_owned(), "0123456789abcdef".to_owned());
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let of_token = (tag::TOKEN.to_owned(), token.to_owned());
        let tags = [owner, of_token].into_iter().chain(tags).collect();
        self.made(&*provider, token, tags)
    }

    fn made(&self, provider: &dyn Account, token: &str, tags: Tags) -> VolumeId {
        let (token, volume_type, size) = (token.to_owned(), self.names.kind.to_owned(), Bytes::from_gib(10));
        let id = provider.create(&CreateVolume { token, volume_type, size, tags }).unwrap().0.id;
        self.reaches(provider, &id, VolumeState::Available);
        id
    }

    fn reaches(&self, provider: &dyn Account, id: &VolumeId, state: VolumeState) {
        for _ in 0..1000 {
            match provider.describe(id) {
                Ok(volume) if volume.state == state => return,
                Ok(_) | Err(ProviderError::NotFound(_)) => self.pass(STEP),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("{id:?} does not become {state:?}");
    }

    /// The machine is deleted, and another one calls.
    fn machine_dies(&self) {
        self.fake.replace_machine(self.names.second, None);
    }

    fn reap(&self, rule: Rule, deletes: bool) -> Reaped {
        let mut reaped = Reaped::default();
        let pause = |time| self.pass(time);
        let reaper = Reaper { rule, deletes, now_ms: self.clock.now_ms(), pause: &pause };
        reaper.reap("cloud", &*self.open(), &mut reaped);
        reaped
    }

    /// Deletes by the default rule, and tells what became of each volume.
    fn deletes(&self) -> Reaped {
        self.reap(Rule::default(), true)
    }
}

fn of<'a>(reaped: &'a Reaped, id: &VolumeId) -> &'a Seen {
    reaped.volumes.iter().find(|seen| seen.volume == id.0).unwrap_or_else(|| panic!("{id:?} of {reaped:?}"))
}

fn kept(reaped: &Reaped, id: &VolumeId) -> Option<Reason> {
    let seen = of(reaped, id);
    assert_eq!(seen.outcome, Outcome::Kept, "{seen:?}");
    seen.kept_because
}

/// Gives each cloud the same tests.
macro_rules! on_each_cloud {
    ($($test:ident,)+) => {
        mod aws {
            $(#[test] fn $test() { super::$test(&super::World::new(super::FakeEc2::start)); })+
        }
        mod gce {
            $(#[test] fn $test() { super::$test(&super::World::new(super::FakeGce::start)); })+
        }
        mod azure {
            $(#[test] fn $test() { super::$test(&super::World::new(super::FakeAzure::start)); })+
        }
    };
}

on_each_cloud! {
    an_orphan_of_a_machine_that_is_gone_is_deleted_and_nothing_else,
    without_delete_nothing_is_changed,
    volumes_of_machines_that_are_stopped_are_kept,
    what_a_listing_shows_too_late_is_looked_at_again_before_it_is_deleted,
    a_volume_without_a_machines_tag_is_deleted_on_an_explicit_word_alone,
    a_deletion_that_fails_is_told,
    a_cloud_that_does_not_say_whether_a_machine_exists_deletes_nothing,
    a_listing_that_fails_is_told,
    a_call_of_which_there_were_too_many_or_that_got_lost_is_made_again,
    a_volume_that_a_daemon_takes_over_is_of_that_daemons_machine,
}

fn an_orphan_of_a_machine_that_is_gone_is_deleted_and_nothing_else(world: &World) {
    let orphan = world.rented("orphan", &[(tag::DEVICE, "data")]);
    let dirty = world.rented("dirty", &[(tag::DEVICE, "data"), (tag::DIRTY_EPOCH, "7")]);
    let attached = world.rented("attached", &[]);
    world.fake.attach_elsewhere(&attached, "rescue-machine");
    let foreign = world.made(&*world.open(), "foreign", Tags::from([("name".to_owned(), "backup".to_owned())]));
    world.machine_dies();
    let living = world.rented("living", &[]);
    world.pass(3 * HOUR);

    let reaped = world.deletes();
    assert_eq!(reaped.errors, Vec::<String>::new());
    let seen = of(&reaped, &orphan);
    assert_eq!((seen.outcome, seen.machine_state), (Outcome::Deleted, Some(Machine::Gone)));
    let seen = of(&reaped, &dirty);
    assert_eq!((seen.outcome, seen.dirty_epoch.as_deref()), (Outcome::Dirty, Some("7")));
    assert_eq!((seen.owner.as_deref(), seen.device.as_deref()), (Some("0123456789abcdef"), Some("data")));
    assert!(seen.age_s.is_some_and(|age_s| age_s >= 3.0 * 3600.0), "{seen:?}");
    assert!(seen.cost_usd.is_some_and(|usd| usd > 0.0) && seen.usd_month > seen.cost_usd, "{seen:?}");
    assert_eq!(kept(&reaped, &attached), Some(Reason::Attached));
    assert_eq!(of(&reaped, &attached).attached_to.as_deref(), Some("rescue-machine"));
    assert_eq!(kept(&reaped, &living), Some(Reason::MachineExists));
    assert!(reaped.volumes.iter().all(|seen| seen.volume != foreign.0), "it is nobody's affair");
    assert_eq!(world.fake.count(), 4);

    // A cloud may show it for a while.
    let again = world.deletes();
    assert_eq!((again.count(Outcome::Deleted), again.count(Outcome::Dirty)), (0, 1));
    assert_eq!(world.fake.count(), 4);
}

fn without_delete_nothing_is_changed(world: &World) {
    let old = world.rented("old", &[]);
    world.pass(3 * HOUR);
    let young = world.rented("young", &[]);
    world.machine_dies();
    let reaped = world.reap(Rule::default(), false);
    assert_eq!(of(&reaped, &old).outcome, Outcome::WouldDelete);
    assert_eq!(kept(&reaped, &young), Some(Reason::Young));
    assert_eq!(world.fake.count(), 2);
    // Nor is a young one deleted.
    world.deletes();
    assert_eq!(world.fake.count(), 1);
}

/// As `array assemble` does it.
fn a_volume_that_a_daemon_takes_over_is_of_that_daemons_machine(world: &World) {
    let id = world.rented("a", &[(tag::DIRTY_EPOCH, "7")]);
    let machine = |account: &dyn Account| account.volume(&id).unwrap().unwrap().machine.unwrap();
    let first = machine(&*world.open());
    world.machine_dies();
    let account = world.open();
    assert_eq!(machine(&*account), first);
    for change in [Change::Changed, Change::Identity] {
        assert_eq!(account.set_tag(&id, tag::OWNER, Some("fedcba9876543210")), Ok(change));
        let volume = account.describe(&id).unwrap();
        assert_eq!(volume.tags.get(tag::OWNER).map(String::as_str), Some("fedcba9876543210"));
        assert!(!volume.tags.contains_key(tag::HOST), "callers are not shown it");
    }
    let second = machine(&*account);
    assert!(second != first && second.contains(world.names.second), "{second}");
    // Other tags do not say whose it is.
    world.fake.replace_machine("i-0000000000000003c", Some(world.names.stopped));
    account.set_tag(&id, tag::DIRTY_EPOCH, Some("8")).unwrap();
    assert_eq!(machine(&*world.open()), second);
}

/// Roles that were made before the machine was among what they may set.
#[test]
fn a_role_of_aws_that_may_not_set_the_machine_takes_volumes_over_all_the_same() {
    let clock = Arc::new(ManualClock::at_ms(START_MS));
    let fake = FakeEc2::start(clock.clone(), Settings::default());
    let account = Fake::open(&fake, clock.clone());
    let tags = Tags::from([(tag::OWNER.to_owned(), "a".to_owned())]);
    let (token, volume_type, size) = ("t".to_owned(), "gp3".to_owned(), Bytes::from_gib(10));
    let id = account.create(&CreateVolume { token, volume_type, size, tags }).unwrap().0.id;
    let machine = |account: &dyn Account| account.volume(&id).unwrap().unwrap().machine;
    let first = machine(&*account);
    FakeEc2::replace_instance(&fake, "i-0000000000000002b", None);
    fake.deny_tag(tag::HOST);
    let account = Fake::open(&fake, clock);
    assert_eq!(account.set_tag(&id, tag::OWNER, Some("b")), Ok(Change::Changed));
    let owner = account.describe(&id).unwrap().tags.remove(tag::OWNER);
    assert_eq!((owner.as_deref(), machine(&*account)), (Some("b"), first));
}

fn volumes_of_machines_that_are_stopped_are_kept(world: &World) {
    let id = world.rented("a", &[]);
    world.fake.replace_machine(world.names.second, Some(world.names.stopped));
    world.pass(100 * HOUR);
    for rule in [Rule::default(), Rule::older_than(HOUR).unwrap()] {
        assert_eq!(kept(&world.reap(rule, true), &id), Some(Reason::MachineExists));
    }
    assert_eq!(world.fake.count(), 1);
}

fn what_a_listing_shows_too_late_is_looked_at_again_before_it_is_deleted(world: &World) {
    let (dirty, gone) = (world.rented("dirty", &[]), world.rented("gone", &[]));
    world.machine_dies();
    world.pass(3 * HOUR);
    world.fake.set_listing_lag(HOUR);
    // Somebody has come to the rescue of one of them: the tag is set, and the list does not show it.
    let provider = world.open();
    provider.set_tag(&dirty, tag::DIRTY_EPOCH, Some("1")).unwrap();
    provider.delete(&gone).unwrap();
    world.pass(Duration::from_secs(60));
    let listed = provider.volumes().unwrap();
    assert!(listed.iter().all(|of| !of.volume.tags.contains_key(tag::DIRTY_EPOCH)), "{listed:?}");
    let reaped = world.deletes();
    assert_eq!(of(&reaped, &dirty).outcome, Outcome::Dirty);
    assert!(reaped.count(Outcome::Deleted) == 0 && reaped.errors.is_empty(), "{reaped:?}");
    assert_eq!(world.fake.count(), 1);
}

fn a_volume_without_a_machines_tag_is_deleted_on_an_explicit_word_alone(world: &World) {
    let id = world.rented("a", &[]);
    // As releases rented that did not set it.
    world.open().set_tag(&id, tag::HOST, None).unwrap();
    world.machine_dies();
    world.pass(3 * HOUR);
    assert_eq!(kept(&world.deletes(), &id), Some(Reason::MachineUnnamed));
    let younger = Rule::older_than(4 * HOUR).unwrap();
    assert_eq!(kept(&world.reap(younger, true), &id), Some(Reason::Young));
    assert_eq!(world.fake.count(), 1);
    let reaped = world.reap(Rule::older_than(HOUR).unwrap(), true);
    assert_eq!((of(&reaped, &id).outcome, world.fake.count()), (Outcome::Deleted, 0));
}

fn a_deletion_that_fails_is_told(world: &World) {
    let ids = [world.rented("a", &[]), world.rented("b", &[])];
    world.machine_dies();
    world.pass(3 * HOUR);
    world.fake.deny(world.names.delete, true);
    let reaped = world.deletes();
    assert!(ids.iter().all(|id| of(&reaped, id).outcome == Outcome::Failed), "{reaped:?}");
    assert!(reaped.errors.len() == 2 && reaped.errors[0].contains("cannot be deleted"), "{reaped:?}");
    assert_eq!(world.fake.count(), 2);
    world.fake.deny(world.names.delete, false);
    assert_eq!(world.deletes().count(Outcome::Deleted), 2);
}

fn a_cloud_that_does_not_say_whether_a_machine_exists_deletes_nothing(world: &World) {
    let id = world.rented("a", &[]);
    world.machine_dies();
    world.pass(3 * HOUR);
    let account = world.open();
    // It has logged in before.
    account.volumes().unwrap();
    world.fake.deny(world.names.machine, true);
    let pauses = RefCell::new(0);
    let pause = |_| *pauses.borrow_mut() += 1;
    let rule = Rule::older_than(HOUR).unwrap();
    let reaper = Reaper { rule, deletes: true, now_ms: world.clock.now_ms(), pause: &pause };
    let mut reaped = Reaped::default();
    reaper.reap("cloud", &*account, &mut reaped);
    assert_eq!(kept(&reaped, &id), Some(Reason::MachineUnanswered));
    assert!(reaped.errors.len() == 1 && reaped.errors[0].contains("exists cannot be told"), "{reaped:?}");
    assert_eq!((world.fake.count(), *pauses.borrow()), (1, 0));
}

fn a_listing_that_fails_is_told(world: &World) {
    world.rented("a", &[]);
    world.fake.deny(world.names.list, true);
    let reaped = world.deletes();
    assert!(reaped.errors.len() == 1 && reaped.errors[0].contains("[provider.cloud] cannot be listed"), "{reaped:?}");
    assert_eq!(reaped.volumes, Vec::new());
}

fn a_call_of_which_there_were_too_many_or_that_got_lost_is_made_again(world: &World) {
    let id = world.rented("a", &[]);
    world.machine_dies();
    world.pass(3 * HOUR);
    for call in [world.names.list, world.names.machine, world.names.delete, world.names.delete] {
        world.fake.fault(call, Fault::Throttled);
        world.fake.fault(call, Fault::Unavailable);
    }
    let reaped = world.deletes();
    assert_eq!(of(&reaped, &id).outcome, Outcome::Deleted, "{reaped:?}");
    assert_eq!((reaped.errors.len(), world.fake.count()), (0, 0));
}

#[test]
fn a_machine_of_azure_that_was_made_again_under_its_name_is_another_one() {
    let world = World::new(FakeAzure::start);
    let (left, attached) = (world.rented("left", &[]), world.rented("attached", &[(tag::DIRTY_EPOCH, "7")]));
    world.fake.replace_machine(MACHINE, None);
    let living = world.rented("living", &[]);
    world.fake.attach_elsewhere(&attached, MACHINE);
    world.pass(3 * HOUR);
    let reaped = world.deletes();
    assert_eq!(reaped.errors, Vec::<String>::new());
    let seen = of(&reaped, &left);
    assert_eq!((seen.outcome, seen.machine_state), (Outcome::Deleted, Some(Machine::Gone)));
    let host = format!("{SUBSCRIPTION}/{GROUP}/{MACHINE}/01234567-89ab-cdef-0123-000000000000").to_ascii_lowercase();
    assert_eq!(seen.machine, Some(host));
    assert_eq!(kept(&reaped, &living), Some(Reason::MachineExists));
    // Whoever made the machine again has attached what the former one had.
    assert_eq!(kept(&reaped, &attached), Some(Reason::Attached));
    assert_eq!(world.fake.count(), 2);
    // When it is gone as well, Azure may show for a while that it has the disk.
    world.machine_dies();
    assert_eq!(of(&world.deletes(), &attached).outcome, Outcome::Dirty);
    world.open().set_tag(&attached, tag::DIRTY_EPOCH, None).unwrap();
    assert_eq!(kept(&world.deletes(), &attached), Some(Reason::AttachedToNone));
}

#[test]
fn an_instance_of_googles_that_was_made_again_under_its_name_is_another_one() {
    let world = World::new(FakeGce::start);
    let (left, attached) = (world.rented("left", &[]), world.rented("attached", &[(tag::DIRTY_EPOCH, "7")]));
    let dirty = world.rented("dirty", &[(tag::DIRTY_EPOCH, "8")]);
    world.pass(HOUR);
    world.fake.replace_machine(INSTANCE, None);
    world.pass(HOUR);
    let living = world.rented("living", &[]);
    world.fake.attach_elsewhere(&attached, INSTANCE);
    world.pass(3 * HOUR);
    let reaped = world.deletes();
    assert_eq!(reaped.errors, Vec::<String>::new());
    let seen = of(&reaped, &left);
    assert_eq!((seen.outcome, seen.machine_state), (Outcome::Deleted, Some(Machine::Gone)));
    assert_eq!(of(&reaped, &dirty).outcome, Outcome::Dirty);
    assert_eq!(kept(&reaped, &living), Some(Reason::MachineExists));
    // Whoever made the instance again has attached what the former one had.
    assert_eq!(kept(&reaped, &attached), Some(Reason::Attached));
    assert_eq!(world.fake.count(), 3);
}

#[test]
fn of_machines_of_another_resource_group_nothing_is_known_at_azure() {
    let world = World::new(FakeAzure::start);
    let unique = "01234567-89ab-cdef-0123-456789abcdef";
    let hosts = [
        format!("{SUBSCRIPTION}/theirs/{MACHINE}/{unique}"),
        format!("{unique}/{GROUP}/{MACHINE}/{unique}"),
        "other-machine".to_owned(),
        String::new(),
    ];
    let ids: Vec<VolumeId> = hosts
        .iter()
        .enumerate()
        .map(|(number, host)| {
            let id = world.rented(&format!("a{number}"), &[]);
            world.open().set_tag(&id, tag::HOST, Some(host)).unwrap();
            id
        })
        .collect();
    world.machine_dies();
    world.pass(3 * HOUR);
    let reaped = world.reap(Rule::older_than(HOUR).unwrap(), true);
    for id in &ids {
        assert_eq!(kept(&reaped, id), Some(Reason::MachineUnanswered), "{reaped:?}");
    }
    assert_eq!((reaped.errors.len(), world.fake.count()), (hosts.len(), hosts.len()));
}

#[test]
fn what_bears_our_tags_and_another_name_is_nobodys_affair() {
    let world = World::new(FakeAzure::start);
    let id = world.rented("a", &[]);
    world.machine_dies();
    // Somebody makes a disk of the name of another token, with tags that he has copied.
    let tags = Tags::from([(tag::OWNER.to_owned(), "o".to_owned()), (tag::TOKEN.to_owned(), "a".to_owned())]);
    let copy = world.made(&*world.open(), "b", tags);
    // Or one that is called so, with the tag of an owner alone.
    let tags = Tags::from([(tag::OWNER.to_owned(), "o".to_owned())]);
    let named = world.made(&*world.open(), "backup", tags);
    world.machine_dies();
    world.pass(3 * HOUR);
    let account = world.open();
    let listed: Vec<VolumeId> = account.volumes().unwrap().into_iter().map(|of| of.volume.id).collect();
    assert_eq!((listed, account.volume(&copy), account.volume(&named)), (vec![id], Ok(None), Ok(None)));
    assert_eq!((world.deletes().count(Outcome::Deleted), world.fake.count()), (1, 2));
}

#[test]
fn what_another_machine_has_attached_is_not_discarded() {
    let fake = FakeEc2::start(Arc::new(SystemClock), Settings { create: Duration::ZERO, ..Settings::default() });
    let url = fake.url();
    let config = AwsConfig { endpoint: Some(url.clone()), metadata_url: url.clone(), ..AwsConfig::default() };
    let provider = AwsProvider::open(config).unwrap();
    let tags = [(tag::OWNER, "0123456789abcdef"), (tag::DEVICE, "data"), (tag::DIRTY_EPOCH, "7")];
    let tags: Tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let (token, volume_type, size) = ("a".to_owned(), "gp3".to_owned(), Bytes::from_gib(10));
    let id = provider.create(&CreateVolume { token, volume_type, size, tags }).unwrap().0.id;
    fake.attach_elsewhere(&id.0, "i-0000000000000002b");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n\
         [provider.aws]\nendpoint = \"{url}\"\nmetadata_url = \"{url}\"\n\
         [device.data]\nbacking = \"memory:16 MiB\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n\
         [device.data.caching]\nprovider = \"aws\"\nvolume_type = \"gp3\"\nbandwidth = \"125 MiB/s\"\ninitial_size = \"1 GiB\"\n"
    );
    let config = Config::from_text(Path::new("test.toml"), &text).unwrap();
    let why = accept_loss_offline(&config, "data").unwrap_err();
    assert!(why.contains("another machine has it attached"), "{why}");
    assert!(provider.describe(&id).unwrap().tags.contains_key(tag::DIRTY_EPOCH));
}
