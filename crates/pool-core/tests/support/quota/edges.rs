//! Quotas at their edges: managers that have looked in the same moment give no more than there is; and room for a file that is drained meanwhile is not
//! room for all of it.

use std::collections::BTreeMap;

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, Revision, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::quota::{Admission, Answer, Limit, Looked, Quota, Quotas, Want};

use super::{ROOT, World, lease, named};

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let limit = 1 + random.below(10_000);
    let quotas: Quotas = [(None, Quota { bytes: Limit::AtMost(limit), files: Limit::AtMost(limit) })].into();
    let mut managers = vec![Admission::default(); 1 + random.below(4) as usize];
    for manager in &mut managers {
        manager.begin_look();
        manager.looked(quotas.clone(), BTreeMap::new(), Revision(1));
    }
    let mut given = 0;
    for _ in 0..200 {
        let at = random.below(managers.len() as u64) as usize;
        let least = 1 + random.below(limit.div_ceil(8));
        let most = least + random.below(limit);
        if let Answer::Granted(_, bytes) = managers[at].ask(1, Want::Bytes { taken: 0, least, most }, Looked::Lately) {
            given += bytes;
        }
    }
    if given > limit {
        return Err(format!("{} managers give {given} of {limit}", managers.len()));
    }
    drained_meanwhile(random.below(limit))
}

fn drained_meanwhile(size: u64) -> Result<(), String> {
    let mut world = World::new(Random::from_seed(0), 0);
    world.begin();
    let (session, inode) = (world.sessions[0], Inode(5));
    let writer = (session, lease(session));
    let create = Operation::Create { at: (ROOT, named(5)), fresh: 5, writer, owner: (0o644, 1, 1) };
    let reserve = |counts, size| Operation::Reserve { inode, writer, user: 1, counts, size };
    let (on, groups, close) = ((Version::NONE, 0), Vec::new(), Some(6));
    let commit = Operation::Commit { inode, session, on, size: size + 1, groups, close };
    let open = Operation::OpenForWriting { inode, writer, rewrites: false };
    for operation in [create, reserve(0, size + 1), commit, open] {
        world.carry_out(&operation).map_err(|refusal| format!("{operation:?}: {refusal}"))?;
    }
    // It counts as committed, and is drained.
    world.publish();
    match world.carry_out(&reserve(size + 1, size + 2)) {
        Err(Refusal::Moved) => Ok(()),
        other => Err(format!("{other:?}, though the file counts nothing any more")),
    }
}
