//! The event queue of virtual time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::Instant;

/// Events to come, earliest first; those of one moment in the order in which they were scheduled.
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Entry<T>>,
    order: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    at: Instant,
    order: u64,
    event: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first: the earliest.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), order: 0 }
    }
}

impl<T> EventQueue<T> {
    /// `event` happens at `at`.
    pub fn push(&mut self, at: Instant, event: T) {
        self.order += 1;
        self.heap.push(Entry { at, order: self.order, event });
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// The events to come, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.heap.iter().map(|entry| &entry.event)
    }

    /// Nothing happens any more.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_in_order_of_time_then_of_scheduling(times in prop::collection::vec(0u64..50, 0..200)) {
            let mut queue = EventQueue::default();
            for (number, &at) in times.iter().enumerate() {
                queue.push(Instant::from_nanoseconds(at), number);
            }
            let mut expected: Vec<(u64, usize)> = times.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            for (at, number) in expected {
                prop_assert_eq!(queue.next_at(), Some(Instant::from_nanoseconds(at)));
                prop_assert_eq!(queue.pop(), Some((Instant::from_nanoseconds(at), number)));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
