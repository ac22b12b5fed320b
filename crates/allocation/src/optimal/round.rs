//! From what a program says to shares in whole segments.
//!
//! Shares are rounded down. What servers have left goes to applications that are above their targets first, then to those that
//! gain most by it, and what nobody gains by to all alike: curves are estimates, and idle cache helps nobody.

use surgetank_model::Bytes;

use super::build::{Built, Range, Request, network};
use super::exchange::is_useful;
use crate::lp::Solution;
use crate::placement::Place;
use crate::plan::TOLERANCE;
use crate::planted::{Bug, planted};
use crate::problem::{Amount, Estimate, Hierarchy, Member, Model, Problem};

/// A share that is so near below a whole number of segments is that number: solvers are not more exact.
const NEAR: f64 = 1e-3;

/// What is left is handed out in at most about so many parts of a server.
const PARTS: u64 = 32;

/// A part of a server that is so small is not worth the search for who gains most.
const NEGLIGIBLE: f64 = 1e-6;

/// Who gains less than so many fair latencies gains nothing.
const GAIN_MIN: f64 = 1e-12;

/// Shares in segments, and what is left.
pub(super) struct Shares<'a> {
    pub request: &'a Request<'a>,
    pub first: Vec<u64>,
    /// By application: segments of second-level servers.
    pub second: Vec<Place>,
    first_left: Vec<u64>,
    second_left: Vec<u64>,
}

/// The shares of a solution. With `is_moved`, an application that does not split its shares has the sizes at which its curve
/// touches the hull, where there are such below its shares.
pub(super) fn rounded(request: &Request<'_>, built: &Built, solution: &Solution, is_moved: bool) -> Vec<Amount> {
    let problem = request.problem;
    let whole = |bytes: f64| (bytes / problem.segment as f64 + NEAR).floor() as u64;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (application, (x, y)) in built.shares(&solution.values).into_iter().enumerate() {
        let member = &problem.applications[application];
        let (x, y) = (whole(x), whole(y));
        let moved = if is_moved { at_vertices(problem, member, (x, y)) } else { (x, y) };
        let least = |range: Option<Range>| range.map_or(0, |(low, _)| whole(low));
        first.push(moved.0.max(least(request.first[application]).min(x)));
        second.push(Bytes::new(moved.1.max(least(request.second[application]).min(y))));
    }
    clip(problem, &mut first);
    let has = problem.second_segments();
    let servers = network(problem, &has);
    // Who has how much does not depend on former places, or the same problem would have another plan the second time.
    let mut shares = Shares::new(request, first, servers.place_most(&second, None));
    shares.meet_targets();
    shares.by_gain();
    shares.evenly();
    shares.finished()
}

/// Shares that no program has found: the fair share, and what is handed out to those who gain most of it if nobody has anything,
/// both improved by exchanges. None where exchanges are of no use.
pub(super) fn exchanged(request: &Request<'_>) -> Vec<Vec<Amount>> {
    let problem = request.problem;
    if !is_useful(problem) {
        return Vec::new();
    }
    let segments = |bytes: Bytes| bytes.get() / problem.segment;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for member in &problem.applications {
        first.push(segments(member.fair.level1));
        let place = member.fair.level2.iter().map(|(server, bytes)| (*server, Bytes::new(segments(*bytes))));
        second.push(place.collect());
    }
    let nothing = (vec![0; first.len()], vec![Place::new(); first.len()]);
    let starts = [(first, second), nothing];
    let improved = |(first, second)| {
        let mut shares = Shares::new(request, first, second);
        shares.meet_targets();
        shares.by_gain();
        shares.evenly();
        shares.finished()
    };
    starts.into_iter().map(improved).collect()
}

/// Takes what rounding put on top of a server from the largest shares.
fn clip(problem: &Problem, first: &mut [u64]) {
    if planted(Bug::CapacityPerApplication) {
        return;
    }
    for (server, users) in problem.users().into_iter().enumerate() {
        let shared: u64 = users.iter().map(|user| first[*user]).sum();
        let mut over = shared.saturating_sub(problem.segments(&problem.level1[server]));
        while let Some(largest) = users.iter().copied().max_by_key(|user| first[*user]).filter(|_| over > 0) {
            let taken = over.min(first[largest]);
            first[largest] -= taken;
            over -= taken;
        }
    }
}

/// The largest sizes up to these shares, in segments, at which the curve is no worse than its hull.
fn at_vertices(problem: &Problem, member: &Member, (first, second): (u64, u64)) -> (u64, u64) {
    let (Model::Curve(curve), Some(hull), Estimate::Whole) = (&member.model, &member.hull, member.estimate) else {
        return (first, second);
    };
    let below = |segments: u64| {
        let size = (segments * problem.segment) as f64;
        if curve.at(size) <= hull.at(size) + 1e-9 {
            return segments;
        }
        let vertex = hull.points().iter().map(|(at, _)| *at).rfind(|at| *at <= size).unwrap_or(0.0);
        ((vertex / problem.segment as f64).ceil() as u64).min(segments)
    };
    let first_below = below(first);
    let second = match problem.hierarchy {
        Hierarchy::Exclusive => below(first + second).saturating_sub(first_below),
        Hierarchy::Inclusive => below(second),
    };
    (first_below, second)
}

impl<'a> Shares<'a> {
    fn new(request: &'a Request<'a>, first: Vec<u64>, second: Vec<Place>) -> Self {
        let problem = request.problem;
        let mut first_left: Vec<u64> = problem.level1.iter().map(|server| problem.segments(server)).collect();
        let mut second_left: Vec<u64> = problem.level2.iter().map(|server| problem.segments(server)).collect();
        for (application, member) in problem.applications.iter().enumerate() {
            first_left[member.level1] = first_left[member.level1].saturating_sub(first[application]);
            for (server, segments) in &second[application] {
                second_left[*server] = second_left[*server].saturating_sub(segments.get());
            }
        }
        Self { request, first, second, first_left, second_left }
    }

    /// After exchanges, where they are of use: as near to former places as possible.
    fn finished(mut self) -> Vec<Amount> {
        let problem = self.request.problem;
        if is_useful(problem) {
            self.exchange();
        }
        if let Some(former) = self.request.former {
            let in_segments = |amount: &Option<Amount>| {
                let place = amount.iter().flat_map(|amount| &amount.level2);
                place.map(|(server, bytes)| (*server, Bytes::new(bytes.get() / problem.segment))).collect()
            };
            let former: Vec<Place> = former.iter().map(in_segments).collect();
            let wants: Vec<Bytes> = (0..self.second.len()).map(|of| Bytes::new(self.second_of(of))).collect();
            self.second = network(problem, &problem.second_segments()).place_most(&wants, Some(&former));
        }
        self.amounts()
    }

    fn amounts(&self) -> Vec<Amount> {
        let bytes = |segments: u64| Bytes::new(segments * self.request.problem.segment);
        let amount = |(first, place): (&u64, &Place)| Amount {
            level1: bytes(*first),
            level2: place.iter().map(|(server, segments)| (*server, bytes(segments.get()))).collect(),
        };
        self.first.iter().zip(&self.second).map(amount).collect()
    }

    pub(super) fn second_of(&self, application: usize) -> u64 {
        self.second[application].iter().map(|(_, segments)| segments.get()).sum()
    }

    /// The latency with so many segments more of both levels.
    fn latency_ms(&self, application: usize, more: (u64, u64)) -> f64 {
        let bytes = |segments: u64| (segments * self.request.problem.segment) as f64;
        let (first, second) = (self.first[application] + more.0, self.second_of(application) + more.1);
        self.request.problem.planned_ms(application, bytes(first), bytes(second))
    }

    /// How many segments more of a level an application may have.
    fn room(&self, range: Option<Range>, has: u64) -> u64 {
        range.map_or(u64::MAX, |(_, high)| ((high / self.request.problem.segment as f64) as u64).saturating_sub(has))
    }

    /// The least that a range allows, in segments.
    pub(super) fn at_least(&self, range: Option<Range>) -> u64 {
        range.map_or(0, |(low, _)| (low / self.request.problem.segment as f64).floor() as u64)
    }

    pub(super) fn first_room(&self, application: usize) -> u64 {
        self.room(self.request.first[application], self.first[application])
    }

    pub(super) fn second_room(&self, application: usize) -> u64 {
        self.room(self.request.second[application], self.second_of(application))
    }

    fn give_first(&mut self, application: usize, segments: u64) {
        self.first[application] += segments;
        self.first_left[self.request.problem.applications[application].level1] -= segments;
    }

    pub(super) fn give_second(&mut self, application: usize, server: usize, segments: u64) {
        if segments == 0 {
            return;
        }
        self.second_left[server] -= segments;
        let place = &mut self.second[application];
        match place.binary_search_by_key(&server, |(of, _)| *of) {
            Ok(at) => place[at].1 = Bytes::new(place[at].1.get() + segments),
            Err(at) => place.insert(at, (server, Bytes::new(segments))),
        }
    }

    pub(super) fn take_second(&mut self, application: usize, server: usize, segments: u64) {
        self.second_left[server] += segments;
        for (_, has) in self.second[application].iter_mut().filter(|(of, _)| *of == server) {
            *has = Bytes::new(has.get() - segments);
        }
        self.second[application].retain(|(_, has)| *has > Bytes::ZERO);
    }

    /// Gives the least that is left to applications that are above their targets, of the first level if that is enough.
    fn meet_targets(&mut self) {
        let problem = self.request.problem;
        for (application, member) in problem.applications.iter().enumerate() {
            let target_ms = problem.target_ms(application) * (1.0 + TOLERANCE / 2.0);
            if self.latency_ms(application, (0, 0)) <= target_ms {
                continue;
            }
            let first = self.first_left[member.level1].min(self.first_room(application));
            let left: u64 = member.level2.iter().map(|server| self.second_left[*server]).sum();
            let second = left.min(self.second_room(application));
            let holds = |more: (u64, u64)| self.latency_ms(application, more) <= target_ms;
            let more = if holds((first, 0)) {
                (least(first, &|more| holds((more, 0))), 0)
            } else if holds((0, second)) {
                (0, least(second, &|more| holds((0, more))))
            } else if holds((first, second)) {
                (first, least(second, &|more| holds((first, more))))
            } else {
                continue;
            };
            self.give_first(application, more.0);
            let mut needed = more.1;
            for &server in &member.level2 {
                let given = needed.min(self.second_left[server]);
                self.give_second(application, server, given);
                needed -= given;
            }
        }
    }

    /// Gives what is left of each server to those who gain most by it.
    fn by_gain(&mut self) {
        let problem = self.request.problem;
        for (server, users) in problem.users().iter().enumerate() {
            let part = self.part(&problem.level1[server], self.first_left[server]);
            while let Some((user, segments)) = part.and_then(|part| {
                let room = |user: usize| self.first_left[server].min(self.first_room(user));
                self.best_gain(users, part, &room, &|segments| (segments, 0))
            }) {
                self.give_first(user, segments);
            }
        }
        let users = second_users(problem);
        for (server, users) in users.iter().enumerate() {
            let part = self.part(&problem.level2[server], self.second_left[server]);
            while let Some((user, segments)) = part.and_then(|part| {
                let room = |user: usize| self.second_left[server].min(self.second_room(user));
                self.best_gain(users, part, &room, &|segments| (0, segments))
            }) {
                self.give_second(user, server, segments);
            }
        }
    }

    /// In what parts a server's rest is handed out; none if it is not worth a search.
    fn part(&self, server: &crate::problem::Server, left: u64) -> Option<u64> {
        let all = self.request.problem.segments(server);
        (left as f64 > NEGLIGIBLE * all as f64).then(|| left.div_ceil(PARTS))
    }

    /// Who gains most a segment, and by how many segments. Who does not split its shares may gain by no less than the way to the
    /// next point of its curve.
    fn best_gain(
        &self,
        users: &[usize],
        part: u64,
        room: &dyn Fn(usize) -> u64,
        of_level: &dyn Fn(u64) -> (u64, u64),
    ) -> Option<(usize, u64)> {
        let mut best: Option<(f64, (usize, u64))> = None;
        for &user in users {
            let member = &self.request.problem.applications[user];
            let now_ms = self.latency_ms(user, (0, 0));
            let room = room(user);
            let steps = self.ways(user).into_iter().chain([part.min(room)]);
            for segments in steps.filter(|segments| (1..=room).contains(segments)) {
                let gain = (now_ms - self.latency_ms(user, of_level(segments))) / member.fair_latency_ms;
                let rate = gain / segments as f64;
                if gain > GAIN_MIN && best.is_none_or(|(most, _)| rate > most) {
                    best = Some((rate, (user, segments)));
                }
            }
        }
        best.map(|(_, given)| given)
    }

    /// How many segments there are to the points of a curve whose application does not split its shares.
    pub(super) fn ways(&self, application: usize) -> Vec<u64> {
        self.to_points(application, |at, from| at.saturating_sub(from))
    }

    /// The same back to the points below.
    pub(super) fn ways_back(&self, application: usize) -> Vec<u64> {
        self.to_points(application, |at, from| from.saturating_sub(at))
    }

    /// What it takes to each point of the curve from each size at which it is read, in segments: from the share of each level, and from both
    /// together where these add up.
    fn to_points(&self, application: usize, way: impl Fn(u64, u64) -> u64) -> Vec<u64> {
        let problem = self.request.problem;
        let member = &problem.applications[application];
        let (Model::Curve(curve), Estimate::Whole) = (&member.model, member.estimate) else { return Vec::new() };
        let (first, second) = (self.first[application], self.second_of(application));
        let both = (problem.hierarchy == Hierarchy::Exclusive).then(|| first + second);
        let sizes: Vec<u64> = [first, second].into_iter().chain(both).collect();
        let points = curve.points().iter().map(|(at, _)| (at / problem.segment as f64).ceil() as u64);
        points.flat_map(|at| sizes.iter().map(|size| way(at, *size)).collect::<Vec<_>>()).collect()
    }

    /// Gives what nobody gains by to all alike.
    fn evenly(&mut self) {
        let problem = self.request.problem;
        for (server, users) in problem.users().iter().enumerate() {
            for (at, &user) in users.iter().enumerate() {
                let part = self.first_left[server].div_ceil((users.len() - at) as u64);
                self.give_first(user, part.min(self.first_room(user)));
            }
        }
        for (server, users) in second_users(problem).iter().enumerate() {
            for (at, &user) in users.iter().enumerate() {
                let part = self.second_left[server].div_ceil((users.len() - at) as u64);
                self.give_second(user, server, part.min(self.second_room(user)));
            }
        }
    }
}

/// Who reaches each second-level server.
fn second_users(problem: &Problem) -> Vec<Vec<usize>> {
    let mut users = vec![Vec::new(); problem.level2.len()];
    for (application, member) in problem.applications.iter().enumerate() {
        for server in &member.level2 {
            users[*server].push(application);
        }
    }
    users
}

/// The least number up to `most` at which something holds that holds from some number on.
fn least(most: u64, holds: &dyn Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        (low, high) = if holds(middle) { (low, middle) } else { (middle + 1, high) };
    }
    low
}
