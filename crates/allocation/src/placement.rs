//! Second-level demands spread over the servers that each application reaches.
//!
//! All demands have a place if no set of applications wants more than the servers that it reaches have (Hall's condition); a
//! largest flow decides that, in whole bytes. Among the places it takes those that level the load: the largest share of a
//! server that one application has is as small as possible (the linear program of PSKP10, 3.3: min z with cᵢⱼ ≤ z·Sⱼ), by
//! Newton's method on the cuts of the flow.

use std::collections::BTreeMap;

use surgetank_model::Bytes;

use crate::flow::{Cut, Flow};
use crate::plan::Level;
use crate::planted::{Bug, planted};
use crate::problem::{CACHE_MAX, InvalidProblem, Server, Setting, Subject};

/// What an application has of second-level servers, by index, ascending.
pub(crate) type Place = Vec<(usize, Bytes)>;

/// An application's demand of the second level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Of no other application.
    pub application: String,
    /// The servers that it reaches.
    pub level2: Vec<String>,
    /// What it wants of them together.
    pub demand: Bytes,
}

/// Why demands have no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// They cannot be placed because of what they say.
    #[error("{0}")]
    Invalid(InvalidProblem),
    /// Some applications want more than the servers have that they reach.
    #[error(
        "{} want {:.1} MiB together, and the servers that they reach have {:.1} MiB: {}",
        .applications.join(", "), .wanted.as_mib(), .has.as_mib(), .servers.join(", ")
    )]
    Overcommitted {
        /// Who.
        applications: Vec<String>,
        /// All that they reach.
        servers: Vec<String>,
        /// By these applications.
        wanted: Bytes,
        /// Of these servers.
        has: Bytes,
        /// Applications that have no place for all that they want when as much as possible is placed, and what of it has
        /// none. Without that, or with as much more at a server that each of them reaches, all demands have a place.
        unplaced: Vec<(String, Bytes)>,
    },
}

/// Places demands on servers: by application, in the order of the demands, what it has of which server.
///
/// # Errors
/// If a demand is no valid one, or if there is no place for all.
pub fn place(servers: &[Server], demands: &[Demand]) -> Result<Vec<BTreeMap<String, Bytes>>, PlacementError> {
    let reach = reach_of(servers, demands).map_err(PlacementError::Invalid)?;
    let wants: Vec<Bytes> = demands.iter().map(|demand| demand.demand).collect();
    let has: Vec<Bytes> = servers.iter().map(|server| server.cache).collect();
    let network = Network { has: &has, reach: reach.iter().map(Vec::as_slice).collect() };
    match network.place(&wants, None) {
        Ok(places) => {
            let named = |place: Place| place.into_iter().map(|(j, bytes)| (servers[j].name.clone(), bytes)).collect();
            Ok(places.into_iter().map(named).collect())
        }
        Err(cut) => {
            let servers_of_cut = network.reached_by(&cut.applications);
            let placed = network.place_most(&wants, None);
            let unplaced = |(demand, place): (&Demand, &Place)| {
                let placed: u64 = place.iter().map(|(_, bytes)| bytes.get()).sum();
                (demand.application.clone(), Bytes::new(demand.demand.get() - placed))
            };
            let unplaced = demands.iter().zip(&placed).map(unplaced).filter(|(_, bytes)| *bytes > Bytes::ZERO);
            Err(PlacementError::Overcommitted {
                unplaced: unplaced.collect(),
                wanted: Bytes::new(cut.applications.iter().map(|i| wants[*i].get()).sum()),
                has: Bytes::new(servers_of_cut.iter().map(|j| has[*j].get()).sum()),
                applications: cut.applications.iter().map(|i| demands[*i].application.clone()).collect(),
                servers: servers_of_cut.iter().map(|j| servers[*j].name.clone()).collect(),
            })
        }
    }
}

fn reach_of(servers: &[Server], demands: &[Demand]) -> Result<Vec<Vec<usize>>, InvalidProblem> {
    let invalid = |subject: Subject, message: String| Err(InvalidProblem { subject, message });
    let mut names = BTreeMap::new();
    for (index, server) in servers.iter().enumerate() {
        if names.insert(&*server.name, index).is_some() {
            let message = format!("two second-level servers are named {}: give each its own name", server.name);
            return invalid(Subject::Server(Level::Second, index), message);
        }
    }
    let add = |sum: u64, size: Bytes| sum.saturating_add(size.get());
    if servers.iter().map(|server| server.cache).fold(0, add) > CACHE_MAX.get() {
        let message = format!("the second-level servers have more than {CACHE_MAX} together");
        return invalid(Subject::Servers(Level::Second), message);
    }
    if demands.iter().map(|demand| demand.demand).fold(0, add) > CACHE_MAX.get() {
        return invalid(Subject::Applications, format!("the applications want more than {CACHE_MAX} together"));
    }
    let mut applications = BTreeMap::new();
    let mut reach = Vec::new();
    for (index, Demand { application, level2, .. }) in demands.iter().enumerate() {
        let refuse = |setting: Setting, message: String| invalid(Subject::Application(index, setting), message);
        if applications.insert(&**application, ()).is_some() {
            return refuse(Setting::Name, format!("two applications are named {application}: give each its own name"));
        }
        if level2.is_empty() {
            let message = format!("application {application} reaches no second-level server: name at least one");
            return refuse(Setting::Level2, message);
        }
        let mut reached = Vec::new();
        for name in level2 {
            let Some(server) = names.get(&**name) else {
                let message =
                    format!("application {application} uses the second-level server {name}, which is not there");
                return refuse(Setting::Level2, message);
            };
            reached.push(*server);
        }
        reached.sort_unstable();
        reached.dedup();
        reach.push(reached);
    }
    Ok(reach)
}

/// Servers, and who reaches which.
#[derive(Clone, Debug)]
pub(crate) struct Network<'a> {
    pub has: &'a [Bytes],
    /// By application, ascending.
    pub reach: Vec<&'a [usize]>,
}

/// Newton's method on cuts is finite, and needs few steps. Should rounding keep it from its end, the load is not level.
const STEPS_MAX: usize = 64;

impl Network<'_> {
    /// All servers that one of these applications reaches, ascending.
    pub fn reached_by(&self, applications: &[usize]) -> Vec<usize> {
        let mut servers: Vec<usize> = applications.iter().flat_map(|i| self.reach[*i]).copied().collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Places all demands, as near to former places as possible, or names applications that want too much together.
    pub fn place(&self, wants: &[Bytes], former: Option<&[Place]>) -> Result<Vec<Place>, Cut> {
        let kept = former.map(|former| kept(wants, former));
        let mut whole = self.flow(wants, kept.as_deref(), &|_, server| self.has[server].get());
        if whole.run() > 0 {
            return Err(whole.cut());
        }
        let level = if planted(Bug::LevellingIgnored) { None } else { self.level(wants, kept.as_deref()) };
        let amounts = level.unwrap_or(whole).amounts();
        Ok(amounts.into_iter().map(|place| place.into_iter().map(|(j, b)| (j, Bytes::new(b))).collect()).collect())
    }

    /// What is left over of these demands, and the cut that says why.
    pub fn unplaced(&self, wants: &[Bytes]) -> Option<(u64, Cut)> {
        let mut flow = self.flow(wants, None, &|_, server| self.has[server].get());
        let left = flow.run();
        (left > 0).then(|| (left, flow.cut()))
    }

    /// As much of these demands as has a place at once, spread levelly.
    pub fn place_most(&self, wants: &[Bytes], former: Option<&[Place]>) -> Vec<Place> {
        self.place(wants, former).unwrap_or_else(|_| {
            let mut flow = self.flow(wants, None, &|_, server| self.has[server].get());
            flow.run();
            let placed: Vec<Bytes> =
                flow.amounts().iter().map(|of| Bytes::new(of.iter().map(|(_, b)| b).sum())).collect();
            // What a flow has placed can be placed.
            self.place(&placed, former).unwrap_or_default()
        })
    }

    fn flow(&self, wants: &[Bytes], kept: Option<&[BTreeMap<usize, u64>]>, room: &dyn Fn(usize, usize) -> u64) -> Flow {
        let of = |amounts: &[Bytes]| amounts.iter().map(|bytes| bytes.get()).collect::<Vec<_>>();
        let mut flow = Flow::new(&of(wants), &of(self.has));
        for (application, reached) in self.reach.iter().enumerate() {
            let everything: Vec<usize> = (0..self.has.len()).collect();
            for &server in if planted(Bug::ConnectivityIgnored) { &everything } else { *reached } {
                flow.link(application, server, room(application, server));
                if let Some(amount) = kept.and_then(|kept| kept[application].get(&server)) {
                    flow.send_on_latest(*amount);
                }
            }
        }
        flow
    }

    /// The flow in which no application has more than z of a server, for the least z, except where it keeps what it had.
    fn level(&self, wants: &[Bytes], kept: Option<&[BTreeMap<usize, u64>]>) -> Option<Flow> {
        let has = |server: usize| self.has[server].get() as f64;
        let kept_of = |i: usize, j: usize| kept.and_then(|kept| kept[i].get(&j)).map_or(0.0, |amount| *amount as f64);
        let shares = wants.iter().zip(&self.reach).map(|(wants, reached)| {
            let reachable: f64 = reached.iter().map(|server| has(*server)).sum();
            wants.get() as f64 / reachable.max(1.0)
        });
        let mut z = shares.fold(0.0, f64::max);
        for _ in 0..STEPS_MAX {
            let room = |i: usize, j: usize| kept_of(i, j).max((z * has(j)).ceil()).min(has(j));
            let mut flow = self.flow(wants, kept, &|i, j| room(i, j) as u64);
            let missing = flow.run() as f64;
            if missing == 0.0 {
                return Some(flow);
            }
            let cut = flow.cut();
            let across = |&i: &usize| self.reach[i].iter().map(move |j| (i, *j));
            let links = cut.applications.iter().flat_map(across).filter(|(_, j)| !cut.servers.contains(j));
            let (mut grows, mut all) = (0.0, 0.0);
            for (i, j) in links {
                all += has(j);
                grows += if kept_of(i, j) <= z * has(j) { has(j) } else { 0.0 };
            }
            if all == 0.0 {
                return None;
            }
            z += missing / if grows > 0.0 { grows } else { all };
        }
        None
    }
}

/// What of former places applications keep that want this much now: of each place the same part.
fn kept(wants: &[Bytes], former: &[Place]) -> Vec<BTreeMap<usize, u64>> {
    let of = |(wants, place): (&Bytes, &Place)| {
        let had: u64 = place.iter().map(|(_, bytes)| bytes.get()).sum();
        let kept = |bytes: Bytes| {
            let part = u128::from(bytes.get()) * u128::from(wants.get()) / u128::from(had.max(1));
            bytes.get().min(u64::try_from(part).unwrap_or(u64::MAX))
        };
        place.iter().map(|(server, bytes)| (*server, kept(*bytes))).collect()
    };
    wants.iter().zip(former).map(of).collect()
}
