//! What users of such systems were burnt by, one at a time: a pool in which nothing fails but what the scene says.

use std::collections::BTreeSet;
use std::time::Duration;

use surgetank_pool_core::id::{BenefactorId, Inode, Version};
use surgetank_pool_core::meta::Key;
use surgetank_pool_core::meta::value::{FileState, Kind, Value};
use surgetank_pool_core::placement::{Media, Place};

use super::oracle::{Content, Policy};
use super::{Event, World, names};

/// A client, a file that it has open, and a pool without chances.
pub struct Scene {
    world: World,
    inode: Inode,
}

/// A scene in the pool of a seed.
pub type Play = fn(Scene) -> Result<(), String>;

/// Plays a scene in some pools in which files can be as durable as that.
pub fn play(copies: u32, media: Media, scene: Play) -> Result<(), String> {
    let mut played = 0;
    for seed in 0..40 {
        if let Some(begun) = Scene::begin(seed, Policy { copies, media })? {
            scene(begun).map_err(|what| format!("pool {seed}: {what}"))?;
            played += 1;
        }
    }
    if played >= 10 { Ok(()) } else { Err(format!("it is played in {played} pools alone")) }
}

impl Scene {
    /// `None`: too few benefactors have an SSD.
    fn begin(seed: u64, policy: Policy) -> Result<Option<Self>, String> {
        let mut world = World::new(seed, false);
        let domains: BTreeSet<_> = world
            .nodes
            .values()
            .filter(|node| node.has_ssd || policy.media == Media::Any)
            .map(|node| node.domain)
            .collect();
        if domains.len() <= policy.copies as usize {
            return Ok(None);
        }
        (world.faults.noisy, world.faults.scripted) = (false, true);
        world.oracle.policies = vec![policy];
        let mut scene = Self { world, inode: Inode(0) };
        scene.run(2)?;
        let name = names()[0].clone();
        scene.world.create(0, name);
        scene.until("the file is open", 5, |scene| {
            let open = scene.world.clients[0].files.keys().next().copied();
            scene.inode = open.unwrap_or_default();
            open.is_some()
        })?;
        Ok(Some(scene))
    }

    fn run(&mut self, seconds: u64) -> Result<(), String> {
        let end = self.world.now + Duration::from_secs(seconds);
        self.world.until(end)
    }

    fn until(&mut self, what: &str, seconds: u64, is_so: impl Fn(&mut Self) -> bool) -> Result<(), String> {
        for _ in 0..seconds * 10 {
            if is_so(self) {
                return Ok(());
            }
            let end = self.world.now + Duration::from_millis(100);
            self.world.until(end)?;
        }
        Err(format!("not within {seconds} seconds: {what}"))
    }

    fn write(&mut self, chunks: std::ops::Range<u32>) {
        for chunk in chunks {
            self.world.write(0, self.inode, chunk);
        }
        self.world.run_writer(0, self.inode);
    }

    /// Waits until everything that was written counts.
    fn sync(&mut self, seconds: u64) -> Result<(), String> {
        let before = self.world.report.acknowledged;
        self.world.sync(0, self.inode);
        self.world.run_writer(0, self.inode);
        self.until("the sync is answered", seconds, |scene| scene.world.report.acknowledged > before)
    }

    fn close(&mut self) -> Result<(), String> {
        self.world.close(0, self.inode);
        self.world.run_writer(0, self.inode);
        self.until("the file is closed", 5, |scene| scene.world.clients[0].files.is_empty())
    }

    fn places(&self) -> Vec<Place> {
        self.world.newest_group(self.inode, 0).map(|(_, group)| group.layout.places()).unwrap_or_default()
    }

    fn target_answers(&mut self, answers: bool) {
        self.world.faults.target_gone = self.world.now + Duration::from_secs(if answers { 0 } else { 100_000 });
    }

    fn stop(&mut self, id: BenefactorId) {
        self.world.oracle.memory_lost(1);
        self.world.stop_node(id);
    }

    fn start(&mut self, id: BenefactorId) {
        self.world.queue.push(self.world.now + Duration::from_millis(10), Event::Up(id));
    }

    fn state(&self) -> Option<(FileState, Version)> {
        match self.world.store.get(&Key::Node(self.inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => match node.kind {
                Kind::File(state) => Some((state, node.version)),
                _ => None,
            },
            _ => None,
        }
    }

    fn is_published(&self) -> bool {
        self.state().is_some_and(|(_, version)| self.world.oracle.published.contains(&(self.inode, version)))
    }

    /// What is read of the newest version: so many chunks.
    fn has_chunks(&mut self, count: usize) -> Result<(), String> {
        let reading = self.world.snapshot(self.inode, None).ok_or("the file is gone")?;
        match self.world.read_content(&reading) {
            Content::All(groups) if groups.get(&0).is_some_and(|chunks| chunks.len() == count) => Ok(()),
            Content::All(groups) => Err(format!("{count} chunks were written, and these are read: {groups:?}")),
            Content::Failed(group) => Err(format!("group {group} cannot be read")),
            Content::Wrong(what) => Err(what),
        }
    }
}

pub fn staged_is_not_drained(mut scene: Scene) -> Result<(), String> {
    scene.target_answers(false);
    if scene.state() != Some((FileState::Created, Version(0))) {
        return Err(format!("a file in which nothing was committed is {:?}", scene.state()));
    }
    scene.write(0..4);
    scene.sync(5)?;
    scene.close()?;
    scene.run(60)?;
    if scene.state() != Some((FileState::Replicated, Version(1))) {
        return Err(format!("a file that the target does not have is {:?}", scene.state()));
    }
    scene.target_answers(true);
    scene.until("the target has it", 60, |scene| scene.is_published())?;
    scene.until("that is told", 10, |scene| {
        matches!(scene.state(), Some((FileState::Drained | FileState::Evicted, Version(1))))
    })
}

pub fn the_application_is_gone(mut scene: Scene) -> Result<(), String> {
    scene.write(0..4);
    scene.sync(5)?;
    // It never says that it closes: its session ends with its lease.
    scene.world.clients[0].stalled = scene.world.now + Duration::from_secs(100_000);
    scene.until("the target has it", 120, |scene| scene.is_published())
}

pub fn undrained_stays(mut scene: Scene) -> Result<(), String> {
    scene.target_answers(false);
    scene.write(0..6);
    scene.sync(5)?;
    scene.close()?;
    // Somebody asks for its eviction again and again.
    scene.run(200)?;
    scene.has_chunks(6)?;
    scene.target_answers(true);
    scene.until("it has left the pool", 300, |scene| matches!(scene.state(), Some((FileState::Evicted, _))))?;
    if scene.is_published() { Ok(()) } else { Err("it has left the pool unpublished".to_owned()) }
}

pub fn a_benefactor_returns(mut scene: Scene) -> Result<(), String> {
    scene.target_answers(false);
    scene.write(0..4);
    scene.sync(10)?;
    scene.close()?;
    let ids: BTreeSet<BenefactorId> = scene.places().iter().map(|place| place.id).collect();
    ids.iter().for_each(|id| scene.stop(*id));
    scene.run(60)?;
    scene.target_answers(true);
    // It waits: neither is it lost, nor does the target get less.
    scene.run(60)?;
    if scene.is_published() || !matches!(scene.state(), Some((FileState::Replicated, _))) {
        return Err(format!("without those that have it, it is {:?}", scene.state()));
    }
    ids.iter().for_each(|id| scene.start(*id));
    scene.until("the target has it", 60, |scene| scene.is_published())
}

pub fn a_lost_chunk_is_told(mut scene: Scene) -> Result<(), String> {
    scene.target_answers(false);
    scene.write(0..4);
    scene.sync(5)?;
    let ids: BTreeSet<BenefactorId> = scene.places().iter().map(|place| place.id).collect();
    for id in &ids {
        scene.stop(*id);
        if let Some(node) = scene.world.nodes.get_mut(id) {
            // Nothing of it was on SSD yet.
            (node.ssd, node.log) = Default::default();
        }
        scene.start(*id);
    }
    scene.run(5)?;
    scene.write(4..6);
    scene.world.sync(0, scene.inode);
    scene.world.run_writer(0, scene.inode);
    // The handle fails, and stays so; that is looked at where it does.
    scene.until("the sync fails", 30, |scene| scene.world.report.failed_handles > 0)?;
    if scene.world.report.acknowledged != 1 {
        return Err("a sync was acknowledged without what was lost".to_owned());
    }
    scene.target_answers(true);
    scene.until("the file is marked", 60, |scene| matches!(scene.state(), Some((FileState::Failed, _))))?;
    if scene.is_published() { Err("the target has a file that was lost".to_owned()) } else { Ok(()) }
}

pub fn down_while_appending(mut scene: Scene) -> Result<(), String> {
    scene.write(0..2);
    scene.sync(5)?;
    let id = scene.places()[0].id;
    scene.write(2..4);
    scene.stop(id);
    scene.write(4..6);
    scene.sync(30)?;
    scene.has_chunks(6)?;
    scene.start(id);
    scene.run(30)?;
    scene.has_chunks(6)
}

pub fn all_leases_end(mut scene: Scene) -> Result<(), String> {
    scene.write(0..4);
    scene.sync(5)?;
    let before = scene.places();
    scene.world.lose_all_leases();
    scene.run(60)?;
    match (scene.world.report.repaired, scene.places() == before) {
        (0, true) => scene.has_chunks(4),
        (repaired, _) => Err(format!("{repaired} copies were made, and {before:?} are {:?}", scene.places())),
    }
}

pub fn one_benefactor_is_stuck(mut scene: Scene) -> Result<(), String> {
    scene.write(0..6);
    scene.sync(5)?;
    // It has its lease, and answers nothing.
    let (id, until) = (scene.places()[0].id, scene.world.now + Duration::from_secs(100_000));
    scene.world.faults.cut(0, id, until);
    scene.write(0..6);
    scene.sync(2)
}
