//! Files that are removed before the target has them: the publisher ends them.

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::Key;
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::value::Value;

use super::World;

impl World {
    pub(super) fn has(&self, inode: Inode) -> bool {
        self.store.get(&Key::Node(inode)).is_some()
    }

    /// The publisher knows that a file has ended.
    pub(super) fn forgotten(&mut self, inode: Inode) {
        let versions: Vec<(Inode, Version)> = self.publisher.1.unpublished().filter(|(of, _)| *of == inode).collect();
        versions.into_iter().for_each(|(inode, version)| self.publisher.1.forgotten(inode, version));
    }

    /// The publisher ends a file that has no name, unless it may be at the target.
    pub(super) fn forget(&mut self) {
        let waiting: Vec<(Inode, Version)> = self.publisher.1.unpublished().collect();
        let Some((inode, _)) = self.pick(&waiting) else { return };
        let versions = waiting.iter().filter(|(of, _)| *of == inode);
        let mut turns = versions.filter_map(|of| self.publisher.1.entry(*of));
        let node = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node,
            _ => return,
        };
        if node.at.is_none() && !turns.any(|turn| turn.maybe_done) && !self.forgetting.values().any(|of| *of == inode) {
            let request = self.begin(Operation::Forget { inode, publisher: Some(self.publisher.0) });
            self.forgetting.insert(request, inode);
        }
    }
}
