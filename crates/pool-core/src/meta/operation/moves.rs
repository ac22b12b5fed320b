//! Operations on where the bytes of a file are.

use super::recorder::{Recorder, Stop};
use super::{Refusal, Reply};
use crate::id::{Inode, Version};
use crate::meta::key::{Key, Role};
use crate::meta::value::{Group, Value};
use crate::placement::Place;
use crate::planted::{Bug, planted};

type Answer = Result<Reply, Stop>;

impl Recorder<'_> {
    pub(super) fn relocate(
        &mut self,
        warden: u64,
        inode: Inode,
        (index, version): (u32, Version),
        columns: Option<&[u32]>,
        (from, to): (Place, Place),
    ) -> Answer {
        let owner = self.get(Key::Owner(Role::Warden))?.map(|stored| &stored.value);
        if owner != Some(&Value::Owner(warden)) {
            return Err(Refusal::NotTheWarden.into());
        }
        if !planted(Bug::RepairedWithoutIncarnation) {
            match self.stays(Key::Benefactor(to.id))?.map(|stored| &stored.value) {
                Some(Value::Benefactor(alive)) if *alive == to => {}
                _ => return Err(Refusal::Benefactors(vec![to]).into()),
            }
        }
        let key = Key::Group(inode, index, version);
        let Some(Value::Group(group)) = self.get(key.clone())?.map(|stored| stored.value.clone()) else {
            return Err(Refusal::NotFound.into());
        };
        let mut layout = group.layout;
        let mut replaced = false;
        for (at, column) in (0..).zip(&mut layout.columns) {
            if columns.is_some_and(|columns| !columns.contains(&at)) {
                continue;
            }
            for place in column.places.iter_mut().filter(|place| **place == from) {
                (*place, replaced) = (to, true);
            }
        }
        if !replaced {
            return Err(Refusal::NotFound.into());
        }
        self.put(key, Value::Group(Group { layout, ..group }));
        Ok(Reply::Done)
    }
}
