//! What is sent next, and how a commit goes on.

use super::*;

impl Writer {
    /// Sends what is wanted, asks for places, and takes the round a step further.
    pub(super) fn go_on(&mut self, now: Instant) {
        if self.failed.is_some() {
            return;
        }
        let mut lost = None;
        let Self { groups, round, config, own, effects, .. } = self;
        for (group, open) in groups.iter_mut() {
            let busy =
                open.table != open.committed || round.as_ref().is_some_and(|round| round.goal.contains_key(group));
            for (at, column) in (0..).zip(&mut open.columns).filter(|_| busy) {
                let alive: Vec<Place> = column.seats.iter().filter(|seat| seat.alive).map(|seat| seat.place).collect();
                let may_ask = column.asked.is_none_or(|asked| now.since(asked) >= config.pause);
                if alive.len() < config.copies + usize::from(column.hedged) && may_ask {
                    column.asked = Some(now);
                    effects.push_back(Effect::Place { group: *group, column: at, beside: alive });
                }
                lost = lost.or(send(now, *group, column, own, effects));
            }
        }
        match lost {
            Some((group, chunk)) => self.fail(Why::Lost(group, chunk)),
            None => self.advance(now),
        }
    }

    fn advance(&mut self, now: Instant) {
        if self.round.is_none() && !self.waiting.is_empty() {
            self.begin(now);
        }
        let Some(round) = &mut self.round else { return };
        let is_alive = |group: &Open, column: usize, place: &Place| {
            group.columns[column].seats.iter().any(|seat| seat.alive && seat.place == *place)
        };
        if round.stage == Stage::Sealing {
            let chosen = round.chosen.iter().flat_map(|(group, columns)| {
                (0..)
                    .zip(columns)
                    .flat_map(move |(column, places)| places.iter().map(move |place| (group, column, place)))
            });
            let mut gone = chosen.filter(|(group, column, place)| !is_alive(&self.groups[group], *column, place));
            if gone.next().is_some() {
                round.stage = Stage::Filling;
            }
        }
        if round.stage == Stage::Filling {
            round.seals.clear();
            let Some(chosen) = choose(&self.groups, &round.goal, self.config.copies) else { return };
            round.chosen = chosen;
            round.stage = Stage::Sealing;
            self.send_seals(now);
        } else if round.stage == Stage::Sealing && round.seals.is_empty() {
            self.send_commit(now);
        }
        // A round without groups seals nothing.
        if self.round.as_ref().is_some_and(|round| round.stage == Stage::Sealing && round.seals.is_empty()) {
            self.send_commit(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        let dirty = self.groups.iter().filter(|(_, open)| open.table != open.committed);
        let goal: BTreeMap<u32, Table> = dirty.map(|(group, open)| (*group, open.table.clone())).collect();
        let syncs = std::mem::take(&mut self.waiting);
        if goal.is_empty() && self.size.0 == self.size.1 {
            self.answers.extend(syncs.into_iter().map(|id| (id, Ok(self.on))));
            return;
        }
        self.round = Some(Round {
            goal,
            size: self.size.0,
            syncs,
            stage: Stage::Filling,
            chosen: BTreeMap::new(),
            seals: BTreeMap::new(),
            sent_at: now,
            unknown: false,
            named: BTreeMap::new(),
        });
    }

    /// What each chosen place is to seal.
    fn tables(&self) -> BTreeMap<(Place, u32), Table> {
        let mut tables: BTreeMap<(Place, u32), Table> = BTreeMap::new();
        let Some(round) = &self.round else { return tables };
        for (group, goal) in &round.goal {
            let Some((open, columns)) = self.groups.get(group).zip(round.chosen.get(group)) else { continue };
            for (column, places) in (0..).zip(columns) {
                let part = open.part(goal, column);
                for place in places {
                    let seat = open.columns[column].seats.iter().find(|seat| seat.alive && seat.place == *place);
                    let has =
                        |entry: &Entry| seat.is_some_and(|seat| !seat.holey || seat.stored.contains(&entry.instance));
                    let table = part.iter().filter(|(_, entry)| has(entry)).map(|(chunk, entry)| (*chunk, *entry));
                    tables.entry((*place, *group)).or_default().extend(table);
                }
            }
        }
        for (of, table) in &mut tables {
            table.extend(round.named.get(of).into_iter().flatten().map(|(chunk, entry)| (*chunk, *entry)));
        }
        tables
    }

    fn send_seals(&mut self, now: Instant) {
        let tables = self.tables();
        self.order = SealOrder(self.newest, self.order.1 + 1);
        let Some(round) = &mut self.round else { return };
        for ((at, group), table) in tables {
            round.seals.insert((at, group), (now, 0));
            let of = GroupOf { inode: self.inode, group };
            self.effects.push_back(Effect::Seal { at, of, version: self.on.next(), order: self.order, table });
        }
    }

    pub(super) fn send_commit(&mut self, now: Instant) {
        let named = self.tables();
        let Some(round) = &mut self.round else { return };
        round.named.extend(named);
        (round.stage, round.sent_at) = (Stage::Committing, now);
        self.commits += 1;
        let layout = |group: &u32, places: &[Vec<Place>]| {
            let columns = self.groups[group].columns.iter().zip(places);
            Layout {
                parity: None,
                columns: columns
                    .map(|(seats, places)| Column { places: places.clone(), tier: seats.tier, weight: seats.weight })
                    .collect(),
            }
        };
        let groups = round.goal.iter().map(|(group, goal)| (*group, layout(group, &round.chosen[group]), goal.clone()));
        let groups = groups.collect();
        self.effects.push_back(Effect::Commit { id: self.commits, on: self.on, size: round.size, groups });
    }

    /// The round took place.
    pub(super) fn finish(&mut self, version: Version) {
        let Some(round) = self.round.take() else { return };
        self.on = version;
        self.size.1 = round.size;
        let mut kept = Vec::new();
        for (group, goal) in round.goal {
            let Some(open) = self.groups.get_mut(&group) else { continue };
            for (column, places) in open.columns.iter_mut().zip(&round.chosen[&group]) {
                for seat in &column.seats {
                    // Named by what was committed, or by nothing: drafts no longer.
                    let is_chosen = places.contains(&seat.place);
                    let in_goal = |instance: &Instance| goal.values().any(|entry| entry.instance == *instance);
                    let is_over =
                        |instance: &&Instance| !is_chosen || (self.own.contains_key(instance) && in_goal(instance));
                    let over = seat.stored.iter().chain(seat.sent.keys().filter(|_| !is_chosen)).filter(is_over);
                    self.effects.extend(over.map(|instance| Effect::Withdraw(seat.place, *instance)));
                }
                column.seats.retain(|seat| places.contains(&seat.place) && seat.alive);
                (column.hedged, column.asked) = (false, None);
            }
            kept.extend(goal.values().map(|entry| entry.instance).filter(|instance| self.own.contains_key(instance)));
            let overwritten: Vec<Instance> = open
                .columns
                .iter()
                .flat_map(|column| &column.seats)
                .flat_map(|seat| seat.stored.iter().copied())
                .filter(|instance| !open.table.values().chain(goal.values()).any(|entry| entry.instance == *instance))
                .collect();
            for seat in open.columns.iter_mut().flat_map(|column| &mut column.seats) {
                seat.stored.retain(|instance| !overwritten.contains(instance));
            }
            open.committed = goal;
        }
        self.own.retain(|instance, _| !kept.contains(instance));
        self.effects.push_back(Effect::Committed(kept));
        self.answers.extend(round.syncs.into_iter().map(|id| (id, Ok(version))));
    }

    /// Somebody else committed other groups: the round goes on top of that.
    pub(super) fn rebase(&mut self, version: Version) {
        self.on = version;
        if let Some(round) = &mut self.round {
            (round.stage, round.unknown) = (Stage::Filling, false);
            round.named.clear();
        }
    }

    pub(super) fn tick_round(&mut self, now: Instant) {
        let Config { timeout, attempts, .. } = self.config;
        let tables = match &self.round {
            Some(round) if round.seals.values().any(|(at, _)| now.since(*at) >= timeout) => self.tables(),
            _ => BTreeMap::new(),
        };
        let Some(round) = &mut self.round else { return };
        let mut silent = Vec::new();
        for ((at, group), (sent_at, sent)) in &mut round.seals {
            if now.since(*sent_at) >= timeout {
                (*sent_at, *sent) = (now, *sent + 1);
                if *sent >= attempts {
                    silent.push(*at);
                } else if let Some(table) = tables.get(&(*at, *group)) {
                    let of = GroupOf { inode: self.inode, group: *group };
                    let (at, version, table) = (*at, self.on.next(), table.clone());
                    self.effects.push_back(Effect::Seal { at, of, version, order: self.order, table });
                }
            }
        }
        let (stage, is_late) = (round.stage, now.since(round.sent_at) >= timeout);
        let groups = round.goal.keys().copied().collect();
        silent.into_iter().for_each(|place| self.life_over(now, place));
        match stage {
            Stage::Committing if is_late => self.committed(now, self.commits, None),
            Stage::Settling if is_late => {
                if let Some(round) = &mut self.round {
                    round.sent_at = now;
                }
                self.effects.push_back(Effect::Settle(groups));
            }
            _ => {}
        }
    }

    pub(super) fn fail(&mut self, why: Why) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(why);
        let syncs = self.round.take().map(|round| round.syncs).unwrap_or_default();
        let waiting = std::mem::take(&mut self.waiting);
        self.answers.extend(syncs.into_iter().chain(waiting).map(|id| (id, Err(why))));
        self.effects.clear();
        self.effects.push_back(Effect::Committed(std::mem::take(&mut self.own).into_keys().collect()));
    }

    /// Whether what was written last, what is being committed, or what was committed has this instance.
    pub(super) fn is_named(&self, instance: Instance) -> bool {
        let of = |table: &Table| table.values().any(|entry| entry.instance == instance);
        let round = self.round.iter().flat_map(|round| round.goal.values());
        self.groups.values().flat_map(|open| [&open.table, &open.committed]).chain(round).any(of)
    }

    /// Withdraws a draft that was overwritten before it was committed.
    pub(super) fn unless_needed(&mut self, group: u32, chunk: u32, instance: Instance) {
        let in_round = |round: &Round| {
            round.goal.get(&group).and_then(|goal| goal.get(&chunk)).is_some_and(|entry| entry.instance == instance)
        };
        let Some(open) = self.groups.get_mut(&group) else { return };
        let named = [&open.table, &open.committed]
            .into_iter()
            .any(|table| table.get(&chunk).is_some_and(|entry| entry.instance == instance));
        if named || self.round.as_ref().is_some_and(in_round) {
            return;
        }
        let column = open.stripe.column(chunk.into());
        let mut coming = false;
        for seat in &mut open.columns[column].seats {
            seat.wanted.remove(&instance);
            coming |= seat.sent.contains_key(&instance);
            if seat.stored.remove(&instance) {
                self.effects.push_back(Effect::Withdraw(seat.place, instance));
            }
        }
        // Answers that are still to come find it here.
        if !coming && self.own.remove(&instance).is_some() {
            self.effects.push_back(Effect::Committed(vec![instance]));
        }
    }
}

/// Sends what a column's seats want; the chunk that nobody has any more, if there is one.
fn send(
    now: Instant,
    group: u32,
    column: &mut Seats,
    own: &BTreeMap<Instance, (u32, u32)>,
    effects: &mut VecDeque<Effect>,
) -> Option<(u32, u32)> {
    let may_be_named = column.seats.iter().filter(|seat| seat.alive);
    let others = column.seats.iter().filter(|seat| !seat.alive && seat.readable);
    let holders: Vec<(Place, BTreeSet<Instance>)> = may_be_named
        .chain(others)
        .map(|seat| (seat.place, seat.stored.iter().filter(|instance| !own.contains_key(instance)).copied().collect()))
        .collect();
    for seat in column.seats.iter_mut().filter(|seat| seat.alive && seat.not_before <= now) {
        for (instance, mut wanted) in std::mem::take(&mut seat.wanted) {
            let source = if own.contains_key(&instance) {
                Source::Client
            } else if let Some((place, _)) = holders.iter().find(|(_, stored)| stored.contains(&instance)) {
                Source::Benefactor(*place)
            } else {
                return Some((group, wanted.chunk));
            };
            wanted.source = match source {
                Source::Client => None,
                Source::Benefactor(place) => Some(place),
            };
            let chunk = (group, wanted.chunk);
            effects.push_back(Effect::Put { to: seat.place, entry: wanted.entry, chunk, source });
            seat.sent.insert(instance, (now, wanted));
        }
    }
    None
}

/// As many complete places for each column as there are copies; `None`: some are still coming.
fn choose(
    groups: &BTreeMap<u32, Open>,
    goal: &BTreeMap<u32, Table>,
    copies: usize,
) -> Option<BTreeMap<u32, Vec<Vec<Place>>>> {
    let least = if planted(Bug::FewerCopiesCommitted) { 1 } else { copies };
    goal.iter()
        .map(|(group, table)| {
            let open = groups.get(group)?;
            let places = |column: usize| {
                let part = open.part(table, column);
                let complete = open.columns[column].seats.iter().filter(|seat| seat.has(&part));
                let places: Vec<Place> = complete.map(|seat| seat.place).take(copies).collect();
                (places.len() >= least).then_some(places)
            };
            Some((*group, (0..open.columns.len()).map(places).collect::<Option<Vec<_>>>()?))
        })
        .collect()
}
