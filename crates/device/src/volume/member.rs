//! Volumes that another volume is made of.

use std::{fmt, io};

use super::Volume;
use crate::poller::Poller;

/// A volume that is to be a member of another one. `Id` is its number, unique in the life of the whole.
pub struct Member<Id> {
    /// Its number.
    pub id: Id,
    /// What people call it.
    pub name: String,
    /// The volume.
    pub volume: Box<dyn Volume>,
}

impl<Id: fmt::Debug> fmt::Debug for Member<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

impl<Id> Member<Id> {
    /// Has the poller watch it. It comes back with an error.
    pub(super) fn watched(self, poller: &Poller) -> Result<Self, (Self, io::Error)> {
        match self.volume.descriptor().map_or(Ok(()), |descriptor| poller.add(descriptor, 0)) {
            Ok(()) => Ok(self),
            Err(error) => Err((self, error)),
        }
    }

    /// The poller watches it no more.
    pub(super) fn unwatched(self, poller: &Poller) -> Self {
        if let Some(descriptor) = self.volume.descriptor()
            && let Err(error) = poller.remove(descriptor)
        {
            tracing::error!(member = self.name, %error, "a released member cannot be taken out of the poller");
        }
        self
    }
}
