//! What a manager's metrics say: of the whole pool, as this manager sees it, and of what it does itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_pool_core::id::Domain;
use surgetank_pool_core::meta::{Durability, FileState, Key, Kind, Node, Prefix, Role, Value};
use surgetank_pool_core::placement::Protection;
use surgetank_pool_core::quota;

use super::Manager;
use super::answers::OF_STATUS;
use super::counts::counted;
use super::protocol::{State, Status, UserQuota};
use super::warden::written;
use crate::chunks::CHUNK;
use crate::meta::Unavailable;
use crate::metrics::{Labels, Page};
use crate::security::token::Claims;

/// Mounts, and users, that have labels of their own, at most: those that have most. Each costs Prometheus some series.
const SHOWN: usize = 200;
/// How long the store may take: whoever scrapes waits for some seconds only.
const LOOK: Duration = Duration::from_secs(3);

fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

fn alone(value: u64) -> [(Labels, u64); 1] {
    [(Labels::new(), value)]
}

/// Files that targets do not have yet, though nobody writes them any more.
#[derive(Default)]
struct Waiting {
    files: u64,
    bytes: u64,
    /// When the oldest of them was changed last, in nanoseconds since 1970.
    oldest: Option<u64>,
}

impl Waiting {
    fn add(&mut self, node: &Node) {
        let waits = node.kind == Kind::File(FileState::Replicated) && node.published < node.journalled;
        if waits {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(node.size);
            self.oldest = Some(self.oldest.map_or(node.times.changed, |oldest| oldest.min(node.times.changed)));
        }
    }

    fn oldest_s(&self, now: u64) -> u64 {
        self.oldest.map_or(0, |oldest| now.saturating_sub(oldest) / 1_000_000_000)
    }
}

impl Manager {
    pub(crate) async fn observe(&self, page: &mut Page) {
        let counts = &self.counts;
        let (drained, failed) = self.rate.totals();
        page.counter(
            "drained_bytes",
            "Bytes that drains of this manager have brought to targets, also in attempts that failed later",
            alone(drained),
        );
        page.counter(
            "drain_failures",
            "Attempts of this manager to drain a file that did not end with the file at its target",
            alone(failed),
        );
        page.counter(
            "repaired_groups",
            "Groups of which this manager had copies made again, or moved",
            alone(counted(&counts.repaired)),
        );
        page.counter("repair_failures", "Attempts of that kind that failed", alone(counted(&counts.not_repaired)));
        page.counter(
            "quota_refusals",
            "Requests that this manager refused for a quota",
            [
                (label("resource", "bytes"), counted(&counts.over_bytes)),
                (label("resource", "files"), counted(&counts.over_files)),
            ],
        );
        let seen = tokio::time::timeout(LOOK, self.observe_pool(page)).await;
        let is_up = matches!(seen, Ok(Ok(())));
        page.store_up(is_up);
    }

    async fn observe_pool(&self, page: &mut Page) -> Result<(), Unavailable> {
        let prefixes: Vec<Prefix> = OF_STATUS.into_iter().chain([Prefix::Sessions]).collect();
        let read = self.store.read(&[Key::Owner(Role::Warden)], &prefixes).await?;
        let own = Value::Owner(self.tenure.manager());
        let is_warden = read.keys.iter().flatten().any(|stored| stored.value == own);
        let [_, _, nodes, mounts, writers, _, sessions] = &read.prefixes[..] else { return Ok(()) };
        let mut waiting = Waiting::default();
        for (_, stored) in nodes {
            if let Value::Node(node) = &stored.value {
                waiting.add(node);
            }
        }
        let (sessions, written) = (sessions.len() as u64, written(writers).len() as u64);
        let reserved = writers.iter().filter_map(|(_, stored)| quota::reserved([&stored.value]));
        let reserved = reserved.fold(0, u64::saturating_add);
        let wanted: BTreeMap<String, u64> = mounts
            .iter()
            .filter_map(|(_, stored)| match &stored.value {
                Value::Mount(mount) => Some((mount.name.clone(), domains(mount.durability))),
                _ => None,
            })
            .collect();
        // All of the pool is on the page, or nothing.
        let status = self.status_of(&Claims::Member, read).await?;
        page.gauge("undrained_files", "Closed files that their targets do not have yet", alone(waiting.files));
        page.gauge("undrained_bytes", "Bytes of these", alone(waiting.bytes));
        page.gauge(
            "undrained_oldest_seconds",
            "Time since the oldest of these was changed",
            alone(waiting.oldest_s(super::commits::now())),
        );
        page.gauge("sessions", "Sessions of mounts and other clients", alone(sessions));
        page.gauge("written_files", "Files that are open for writing", alone(written));
        page.gauge("reserved_bytes", "Length of these, as far as room in quotas is reserved", alone(reserved));
        page.gauge("warden", "Whether this manager is the one that has copies made again", alone(u64::from(is_warden)));
        self.observe_benefactors(page, &status);
        observe_files(page, &status);
        observe_mounts(page, &status, &wanted);
        observe_store(page, &status);
        observe_quotas(page, &status);
        Ok(())
    }

    fn observe_benefactors(&self, page: &mut Page, status: &Status) {
        let states = [(State::Joined, "joined"), (State::Leaving, "leaving"), (State::Dead, "dead")];
        let in_state = |state| status.states.iter().filter(|(_, of, _)| *of == state).count() as u64;
        let values = states.map(|(state, name)| (label("state", name), in_state(state)));
        page.gauge("benefactors", "Benefactors; dead ones are expected to return with what is on SSD", values);
        let joined = || status.states.iter().filter(|(_, state, _)| *state == State::Joined);
        let domains: BTreeSet<Domain> = joined().map(|(lends, ..)| lends.domain).collect();
        page.gauge("domains", "Failure domains of benefactors that take chunks", alone(domains.len() as u64));
        let (mut lent, mut free) = ((0, 0), (0, 0));
        // Whoever leaves takes nothing new.
        let alive = self.members.all().into_iter().filter_map(|member| member.alive);
        for alive in alive.filter(|alive| !alive.leaving) {
            lent = (lent.0 + alive.of * CHUNK, lent.1 + alive.ssd.1);
            free = (free.0 + alive.credits * CHUNK, free.1 + alive.ssd.0);
        }
        let of_media = |(memory, ssd)| [(label("media", "memory"), memory), (label("media", "ssd"), ssd)];
        page.gauge("lent_bytes", "What benefactors that answer lend and do not leave", of_media(lent));
        page.gauge("free_bytes", "What of that has room for chunks", of_media(free));
        let damaged = status.integrity.iter().map(|(_, integrity)| integrity.damaged).sum();
        page.gauge(
            "damaged_chunks",
            "Chunks that benefactors which answer have found damaged since they began",
            alone(damaged),
        );
    }
}

/// Failure domains that a mount's files need.
fn domains(durability: Durability) -> u64 {
    let protection = match durability {
        Durability::Copies { copies, .. } => Protection::Copies(copies.into()),
        Durability::Parity(of) => Protection::Parity(of),
        Durability::Target => Protection::Copies(1),
    };
    u64::from(protection.places())
}

fn observe_files(page: &mut Page, status: &Status) {
    let names = ["staged", "replicated", "drained", "evicted", "failed", "conflict", "torn", "repairing"];
    let files = names.iter().zip(&status.files).map(|(name, files)| (label("state", *name), *files));
    page.gauge("files", "Files that the pool has names for, by where they are", files);
}

fn observe_mounts(page: &mut Page, status: &Status, wanted: &BTreeMap<String, u64>) {
    let mut mounts: Vec<_> = status.mounts.iter().collect();
    mounts.sort_by_key(|mount| Reverse((mount.standstill.is_some(), mount.memory + mount.ssd, mount.journal)));
    mounts.truncate(SHOWN);
    let of = |mount: &str| label("mount", mount);
    let waiting = mounts.iter().map(|mount| (of(&mount.name), mount.journal));
    page.gauge("mount_changes_waiting", "Changes of a mount that its target has not seen", waiting);
    let held = mounts.iter().flat_map(|mount| {
        let with = |media: &str| vec![("mount", mount.name.clone()), ("media", media.to_owned())];
        [(with("memory"), mount.memory), (with("ssd"), mount.ssd)]
    });
    page.gauge("mount_held_bytes", "What chunks of a mount take of benefactors, with all copies", held);
    let standing = mounts.iter().map(|mount| (of(&mount.name), mount.standstill.as_ref().map_or(0, |of| of.seconds)));
    page.gauge(
        "mount_standstill_seconds",
        "For how long a mount's target has taken nothing, if the asked manager drains to it",
        standing,
    );
    let wanted = mounts.iter().filter_map(|mount| Some((of(&mount.name), *wanted.get(mount.name.as_str())?)));
    page.gauge("mount_domains", "Failure domains that files of a mount need", wanted);
}

fn observe_store(page: &mut Page, status: &Status) {
    let Some(store) = &status.store else { return };
    page.gauge("store_bytes", "The file of the store", alone(store.size));
    page.gauge("store_in_use_bytes", "What of it is in use", alone(store.in_use));
    page.gauge("store_quota_bytes", "At so many bytes the store takes nothing more", alone(store.quota));
    page.gauge(
        "store_refuses_files",
        "Whether new files are refused since the store is short of room",
        alone(u64::from(store.refusal.is_some())),
    );
}

fn observe_quotas(page: &mut Page, status: &Status) {
    let mut users: Vec<UserQuota> = status.quotas.users.clone();
    users.retain(|user| user.bytes.is_some() || user.files.is_some());
    // Those who have most of what they may have.
    let part =
        |used: u64, limit: Option<u64>| limit.map_or(0, |limit| u128::from(used) * 1000 / u128::from(limit.max(1)));
    users.sort_by_key(|user| Reverse(part(user.used.bytes, user.bytes).max(part(user.used.files, user.files))));
    users.truncate(SHOWN);
    let of = |user: &UserQuota| label("uid", user.user.to_string());
    page.gauge(
        "quota_used_bytes",
        "Bytes of a user that no target has",
        users.iter().map(|user| (of(user), user.used.bytes)),
    );
    page.gauge(
        "quota_limit_bytes",
        "Bytes that a user may have",
        users.iter().filter_map(|user| Some((of(user), user.bytes?))),
    );
    page.gauge("quota_used_files", "Files of a user", users.iter().map(|user| (of(user), user.used.files)));
    page.gauge(
        "quota_limit_files",
        "Files that a user may have",
        users.iter().filter_map(|user| Some((of(user), user.files?))),
    );
}
