//! What a description must be, and what follows from one that is.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Bytes;

use super::{
    Amount, Application, Description, Estimate, Hierarchy, InvalidProblem, LATENCY_MAX, Latencies, Member, Model,
    Problem, Server, Setting, Slo, Subject,
};
use crate::hull::Hull;
use crate::plan::{Added, Level};
use crate::planted::{Bug, planted};

type Checked<T> = Result<T, InvalidProblem>;

/// Indices of servers by their names.
type Names = BTreeMap<String, usize>;

pub(super) fn check(description: Description) -> Checked<Problem> {
    let Description { latencies, hierarchy, level1, level2, applications, segment, change_max } = description;
    let latencies_ms = latencies_of(latencies, Subject::Latencies, "")?;
    if level1.is_empty() {
        return invalid(Subject::Servers(Level::First), "there is no first-level server: name at least one");
    }
    let (first, second) = (named(&level1, Level::First)?, named(&level2, Level::Second)?);
    // Where there is no second level both hierarchies are the same.
    let hierarchy = if level2.is_empty() { Hierarchy::Exclusive } else { hierarchy };
    if applications.is_empty() {
        return invalid(Subject::Applications, "there is no application: name at least one that shares the caches");
    }
    if change_max.is_some_and(|change| !(change > 0.0 && change <= 1.0)) {
        let change = change_max.unwrap_or_default();
        return invalid(
            Subject::ChangeMax,
            format!("the change per interval is {change}: it is above 0, and 1 at most"),
        );
    }
    let mut members = Vec::new();
    let mut names = BTreeMap::new();
    for (index, application) in applications.into_iter().enumerate() {
        if names.insert(application.name.clone(), ()).is_some() {
            let message = format!("two applications are named {}: give each its own name", application.name);
            return invalid(Subject::Application(index, Setting::Name), message);
        }
        members.push(member(index, application, latencies_ms, &first, &second)?);
    }
    let segment = segment.get().max(1);
    let mut problem = Problem { hierarchy, level1, level2, applications: members, segment, change_max };
    add_fair_shares(&mut problem)?;
    Ok(problem)
}

fn invalid<T>(subject: Subject, message: impl Into<String>) -> Checked<T> {
    Err(InvalidProblem { subject, message: message.into() })
}

/// In ms. `of` says in an error whose they are.
fn latencies_of(latencies: Latencies, subject: Subject, of: &str) -> Checked<[f64; 3]> {
    let Latencies { level1, level2, disk } = latencies;
    if level1.is_zero() {
        return invalid(subject, format!("{of}the latency of level 1 is 0: every access takes time"));
    }
    if level1 >= level2 || level2 >= disk {
        return invalid(
            subject,
            format!(
                "{of}the latencies are {level1:?} in level 1, {level2:?} in level 2 and {disk:?} on disk: each level is slower than the one before it"
            ),
        );
    }
    if disk > LATENCY_MAX {
        return invalid(subject, format!("{of}the latency of the disk is {disk:?}: it is {LATENCY_MAX:?} at most"));
    }
    Ok([level1, level2, disk].map(|latency| latency.as_secs_f64() * 1e3))
}

fn named(servers: &[Server], of: Level) -> Checked<Names> {
    let level = match of {
        Level::First => "first",
        Level::Second => "second",
    };
    let mut names = Names::new();
    for (index, server) in servers.iter().enumerate() {
        let refuse = |message: String| invalid(Subject::Server(of, index), message);
        if server.name.is_empty() {
            return refuse(format!("a {level}-level server has no name"));
        }
        if server.cache == Bytes::ZERO {
            return refuse(format!("the {level}-level server {} has no cache: leave it out", server.name));
        }
        if names.insert(server.name.clone(), index).is_some() {
            return refuse(format!("two {level}-level servers are named {}: give each its own name", server.name));
        }
    }
    let together = servers.iter().try_fold(0_u64, |sum, server| sum.checked_add(server.cache.get()));
    if together.is_none_or(|together| together > CACHE_MAX.get()) {
        let message = format!("the {level}-level servers have more than {CACHE_MAX} together");
        return invalid(Subject::Servers(of), message);
    }
    Ok(names)
}

/// What a level may have: sums of shares are numbers of 64 bits.
pub const CACHE_MAX: Bytes = Bytes::from_gib(1 << 30);

fn member(
    index: usize,
    application: Application,
    latencies_ms: [f64; 3],
    first: &Names,
    second: &Names,
) -> Checked<Member> {
    let Application { name, level1, level2, latencies, most, queue, estimate, .. } = application;
    let Application { slo, model, accesses_per_s, margin, violations, .. } = application;
    let refuse = |setting: Setting, message: String| invalid(Subject::Application(index, setting), message);
    if name.is_empty() {
        return refuse(Setting::Name, "an application has no name".to_owned());
    }
    let find = |server: &String, names: &Names, level: &str, setting: Setting| match names.get(server) {
        Some(found) => Ok(*found),
        None => invalid(
            Subject::Application(index, setting),
            format!("application {name} uses the {level}-level server {server}, which is not there"),
        ),
    };
    let level1 = find(&level1, first, "first", Setting::Level1)?;
    let latencies_ms = match latencies {
        Some(own) if !planted(Bug::OwnLatenciesIgnored) => {
            latencies_of(own, Subject::Application(index, Setting::Name), &format!("application {name}: "))?
        }
        _ => latencies_ms,
    };
    let reached = level2.iter().map(|server| find(server, second, "second", Setting::Level2));
    let mut reached = reached.collect::<Checked<Vec<usize>>>()?;
    reached.sort_unstable();
    reached.dedup();
    if reached.len() < level2.len() {
        let message = format!("application {name} names a second-level server twice");
        return refuse(Setting::Level2, message);
    }
    if !slo.is_valid() {
        let message = match slo {
            Slo::AboveFair(slo) => format!(
                "application {name} has the SLO {slo}: it is how far above the fair share its latency may be, such as 0.05, above 0 and {} at most",
                Slo::ABOVE_MAX
            ),
            Slo::Latency(Duration::ZERO) => format!("application {name} has an SLO of 0 s: every access takes time"),
            Slo::Latency(slo) => format!("application {name} has an SLO of {slo:?}: it is {LATENCY_MAX:?} at most"),
        };
        return refuse(Setting::Slo, message);
    }
    if !(accesses_per_s > 0.0 && accesses_per_s.is_finite()) {
        return refuse(
            Setting::Rate,
            format!(
                "application {name} has {accesses_per_s} accesses per second: leave out applications without accesses"
            ),
        );
    }
    if !(0.0..1.0).contains(&margin) {
        let message = format!("application {name} has the margin {margin}: it is at least 0, and below 1");
        return refuse(Setting::Margin, message);
    }
    let model = match model {
        // A fit may say that enough cache makes accesses free; none takes less than a hit in level 1.
        Model::Surface(surface) => Model::Surface(surface.at_least(latencies_ms[0])),
        curve @ Model::Curve(_) => curve,
    };
    let hull = match &model {
        Model::Curve(curve) => Some(Hull::of(curve)),
        Model::Surface(_) => None,
    };
    let (fair, fair_latency_ms) = (Amount::default(), 0.0);
    Ok(Member {
        name,
        level1,
        level2: reached,
        latencies_ms,
        most,
        queue,
        estimate,
        slo,
        margin,
        accesses_per_s,
        violations,
        model,
        hull,
        fair,
        fair_latency_ms,
    })
}

impl Problem {
    /// The same with larger servers, and the fair shares that follow. None if they are larger than a problem's may be.
    pub(crate) fn enlarged(&self, added: &[Added]) -> Option<Self> {
        let mut problem = self.clone();
        for added in added {
            let level = match added.level {
                Level::First => &mut problem.level1,
                Level::Second => &mut problem.level2,
            };
            for server in level.iter_mut().filter(|server| server.name == added.server) {
                server.cache = Bytes::new(server.cache.get().checked_add(added.cache.get())?);
            }
        }
        let is_small = |servers: &[Server]| named(servers, Level::First).is_ok();
        let is_valid = is_small(&problem.level1) && is_small(&problem.level2) && add_fair_shares(&mut problem).is_ok();
        is_valid.then_some(problem)
    }
}

/// An equal split of every server among those who use it, in whole segments.
fn add_fair_shares(problem: &mut Problem) -> Checked<()> {
    let first: Vec<u64> = problem.users().iter().map(|users| users.len() as u64).collect();
    let mut second = vec![0; problem.level2.len()];
    for server in problem.applications.iter().flat_map(|member| &member.level2) {
        second[*server] += 1;
    }
    let segment = problem.segment;
    let of = |level: Level, index: usize| Subject::Server(level, index);
    let one = problem.level1.iter().zip(&first).enumerate().map(|(index, both)| (of(Level::First, index), both));
    let two = problem.level2.iter().zip(&second).enumerate().map(|(index, both)| (of(Level::Second, index), both));
    for (subject, (server, users)) in one.chain(two).filter(|(_, (_, users))| **users > 0) {
        if problem.segments(server) / users == 0 {
            let message = format!(
                "{} has {} for {users} applications, and an equal share is below a segment of {}: enlarge its cache, or let fewer applications use it",
                server.name,
                server.cache,
                Bytes::new(segment)
            );
            return invalid(subject, message);
        }
    }
    for index in 0..problem.applications.len() {
        let member = &problem.applications[index];
        let share = |server: &Server, users: u64| Bytes::new(problem.segments(server) / users * segment);
        let mut fair = Amount {
            level1: share(&problem.level1[member.level1], first[member.level1]),
            level2: member.level2.iter().map(|&j| (j, share(&problem.level2[j], second[j]))).collect(),
        };
        if planted(Bug::FairSharePerLevel) {
            let all: u64 = problem.level1.iter().map(|server| server.cache.get()).sum();
            fair.level1 = Bytes::new(all / problem.applications.len() as u64);
        }
        let latency = problem.latency_ms(index, fair.level1.get() as f64, fair.second().get() as f64, Estimate::Whole);
        if !(latency > 0.0 && latency.is_finite()) {
            let message = format!(
                "application {} takes {latency} ms with its fair share by its model: it is above 0, and finite",
                member.name
            );
            return invalid(Subject::Application(index, Setting::Name), message);
        }
        let member = &mut problem.applications[index];
        (member.fair, member.fair_latency_ms) = (fair, latency);
    }
    Ok(())
}
