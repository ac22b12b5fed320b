//! What the life of an array asks of its driver, and what the driver answers.

use crate::array::record::ArrayRecord;
use crate::ask;
use crate::record::Slot;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Make the record durable; `None`: there is no such array any more. On an error the old one or the new one may be durable.
    Persist(Option<ArrayRecord>),
    /// Of the volume in the place that the ask's id names: draw, call the provider, open, close.
    Rental(ask::Ask),
    /// 128 random bits, for the array's own name.
    Draw,
    /// Make an array of the open, blank volumes in these places, by slot: all that `surgetank_array::create` says, durably.
    Format(Vec<Slot>),
    /// See what is on the open volumes in these places, and serve the array if they make one.
    Serve(Vec<Slot>),
    /// The open, blank volume in a place begins to take the place of a slot's member.
    Join {
        /// Where the volume is.
        place: Slot,
        /// Whose member it replaces.
        slot: u32,
    },
}

/// What an array was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The member of each slot.
    pub active: Vec<Slot>,
    /// Members whose copy goes on.
    pub joining: Vec<(u32, Slot)>,
    /// Members that were replaced and are being told so: [`Event::Released`] ends that.
    pub superseded: Vec<Slot>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `Persist`.
    Persisted(Result<(), String>),
    /// To `Rental`.
    Rental(ask::Answer),
    /// To `Draw`.
    Drawn([u8; 16]),
    /// To `Format`.
    Formatted(Result<(), String>),
    /// To `Serve`: what the volumes are to the array, which is served from now on. The others are no members of it that count.
    Served(Result<Found, String>),
    /// To `Join`.
    Joined(Result<(), String>),
}

/// What the array that is served says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slot has a new member.
    Replaced {
        /// Which slot.
        slot: u32,
        /// Where its volume is.
        place: Slot,
    },
    /// A replacement has ended without effect.
    Dropped {
        /// Which slot.
        slot: u32,
    },
    /// Nothing is asked of a volume any more, and it is closed.
    Released(Slot),
}
