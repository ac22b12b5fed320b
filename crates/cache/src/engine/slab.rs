//! Effects in flight by number: a free list, and a stamp that tells a late answer from a current one.

use crate::effect::EffectId;

/// Values by [`EffectId`].
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Keeps a value; its name is unique until it is taken, and not soon used again.
    pub fn insert(&mut self, value: T) -> EffectId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (stamp, place) = &mut self.slots[slot as usize];
        *stamp = stamp.wrapping_add(1);
        *place = Some(value);
        EffectId(u64::from(*stamp) << 32 | u64::from(slot))
    }

    /// Takes the value out; `None` for a name that is not in flight.
    pub fn take(&mut self, id: EffectId) -> Option<T> {
        let slot = id.0 as u32;
        let (stamp, place) = self.slots.get_mut(slot as usize)?;
        if u64::from(*stamp) != id.0 >> 32 {
            return None;
        }
        let value = place.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// All values, in no order.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }
}
