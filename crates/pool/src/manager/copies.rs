//! Which files miss copies of what was committed: by [`Repair`], as it decides what is to be made again. It is fed with what the store has when
//! somebody asks, since any manager may be asked and the warden's own looks are a second apart.

use std::collections::BTreeSet;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::{Key, Prefix, Stored, Value};
use surgetank_pool_core::placement::Place;
use surgetank_pool_core::repair::{Config, Of, Repair};

use super::Manager;
use super::protocol::Reply;
use super::rights::{NOT_ALLOWED, Within};
use crate::meta::Unavailable;
use crate::security::token::Claims;

impl Manager {
    /// Whether no copy of a file's committed chunks is missing.
    pub(super) async fn is_whole(&self, inode: Inode, by: &Claims) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode), Prefix::Lends]).await?;
        if Within::of(by).is_some_and(|within| !within.has(&read)) {
            return Ok(Reply::Refused(NOT_ALLOWED));
        }
        if read.keys.iter().flatten().next().is_none() {
            return Ok(Reply::Refused(Refusal::NotFound));
        }
        let stored: Vec<_> = read.prefixes.into_iter().flatten().collect();
        Ok(Reply::Whole(self.missing(&stored).is_empty()))
    }

    /// The files of these groups of which copies are missing, by what the store has of leases at the same revision and what the last
    /// probes said: a lease outlasts its process.
    pub(super) fn missing(&self, stored: &[(Key, Stored)]) -> BTreeSet<Inode> {
        let answers = self.members.answer();
        let lends = stored.iter().filter_map(|(_, stored)| match &stored.value {
            Value::Lends(lends) if answers.contains(&lends.place) => Some(lends.place),
            _ => None,
        });
        missing(self.config.repair, &lends.collect(), stored)
    }
}

fn missing(config: Config, alive: &BTreeSet<Place>, stored: &[(Key, Stored)]) -> BTreeSet<Inode> {
    let mut repair = Repair::new(config);
    alive.iter().for_each(|place| repair.alive(place.id, place.incarnation));
    let mut known: BTreeSet<_> = alive.iter().map(|place| place.id).collect();
    for (key, stored) in stored {
        let (Key::Group(inode, group, version), Value::Group(of)) = (key, &stored.value) else { continue };
        // Of whom nothing was ever heard may be well.
        let gone = of.layout.places().into_iter().filter(|place| known.insert(place.id));
        gone.for_each(|place| repair.died(place.id));
        let key = Of { group: GroupOf { inode: *inode, group: *group }, version: *version, by: of.by };
        repair.group(key, &of.layout, Bytes::new(of.staged()));
    }
    repair.missing().map(|of| of.group.inode).collect()
}
