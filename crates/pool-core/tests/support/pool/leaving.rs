//! An operator takes a benefactor out, and changes his mind or ends it once he is told that it may go.

use std::collections::BTreeSet;

use surgetank_model::Bytes;
use surgetank_pool_core::id::{BenefactorId, Domain};
use surgetank_pool_core::leaving::{self, Move, Named, admit, mark, may_go};
use surgetank_pool_core::meta::Key;
use surgetank_pool_core::meta::store::{Outcome, Write};
use surgetank_pool_core::meta::value::{Group, Value};
use surgetank_pool_core::placement::{Candidate, Media};

use super::World;

impl World {
    pub(super) fn is_leaving(&self, id: BenefactorId) -> bool {
        self.store.get(&Key::Leaving(id)).is_some()
    }

    /// Unless the others could not keep what files are to be: then runs would not come to an end.
    pub(super) fn take_out(&mut self, id: BenefactorId) {
        if self.faults.taken_out.is_some() || self.faults.store_gone {
            return;
        }
        let others = || self.nodes.values().filter(|node| node.id != id);
        let domains = |media: Media| {
            let lends = others().filter(|node| node.has_ssd || media == Media::Any);
            lends.map(|node| node.domain).collect::<BTreeSet<Domain>>().len()
        };
        if self.oracle.policies.iter().any(|of| domains(of.media) <= of.copies as usize) {
            return;
        }
        let Some(life) = self.store.get(&Key::Benefactor(id)).cloned() else { return };
        let others: Vec<Candidate> = self.candidates().into_iter().filter(|other| other.place.id != id).collect();
        if admit(&self.moves_of(id), &others).is_err() {
            return;
        }
        if let Outcome::Committed(_) = self.store.commit(&mark(id, &life)) {
            self.faults.taken_out = Some(id);
            self.report.leaving += 1;
        }
    }

    fn moves_of(&self, id: BenefactorId) -> Vec<Move> {
        let mut moves = Vec::new();
        for (key, stored) in super::all_keys(&self.store) {
            let (Key::Group(inode, ..), Value::Group(group)) = (key, &stored.value) else { continue };
            let media = self.oracle.files.get(inode).map_or(Media::Any, |file| file.policy.media);
            let of = (&group.layout, Bytes::new(group.bytes), media);
            moves.extend(leaving::moves(id, of, |other| self.nodes.get(&other).map(|node| node.domain)));
        }
        moves
    }

    pub(super) fn tick_leaving(&mut self) {
        let Some(id) = self.faults.taken_out.filter(|_| !self.faults.store_gone) else { return };
        if self.nodes.get(&id).is_none_or(|node| node.gone) || !self.is_leaving(id) {
            return;
        }
        if !self.faults.calm && self.random.chance(0.002) {
            // He changes his mind: it joins again, in the life that it has.
            self.put(vec![Write::Delete(Key::Leaving(id))]);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.leased = false;
            }
            return;
        }
        let groups: Vec<Group> = super::all_keys(&self.store)
            .filter_map(|(_, stored)| match &stored.value {
                Value::Group(group) => Some(group.clone()),
                _ => None,
            })
            .collect();
        // Clients keep what is not committed themselves.
        if may_go(self.is_leaving(id), &Named::count(id, groups.iter()), false) && self.random.chance(0.1) {
            self.stop_node(id);
            self.report.left += 1;
            if let Some(node) = self.nodes.get_mut(&id) {
                node.gone = true;
                (node.ssd, node.log) = Default::default();
            }
        }
    }
}
