//! Volumes of this machine: looked for, opened, looked at.

use surgetank_device::discovery::is_same;
use surgetank_model::{Bytes, Limits};
use surgetank_provider::{DiskIdentity, VolumeDescription};
use surgetank_rental::{Answer, AskId, Obstacle, Opening, Presence, VolumeAsk, ask};

use super::{Done, Lifecycle, Tools};
use crate::opening::{self, Fresh, Looking, Opened, Opener, Place};

impl Lifecycle {
    pub(super) fn ask_volume(&mut self, id: AskId, ask: VolumeAsk) -> Option<Answer> {
        let Tools { disks, clock, decorator, .. } = &self.tools;
        Some(match ask {
            VolumeAsk::Identities => Answer::Identities(disks.identities().ok()),
            VolumeAsk::Open { description, size, opening } => return self.open(id, description, size, opening),
            VolumeAsk::Close(opened) => {
                self.open.retain(|_, (by, _)| *by != opened);
                Answer::Closed
            }
            VolumeAsk::Superblock(description) => {
                let looking = Looking { disks, clock: *clock, decorator: decorator.as_ref() };
                Answer::Superblock(looking.label(&description, &self.tools.provider.home()))
            }
            VolumeAsk::Look => Answer::Looked(self.look()),
        })
    }

    pub(super) fn look(&self) -> Presence {
        let (Some(place), Some(seen), true) = (&self.place, &self.seen, self.in_use) else { return Presence::Here };
        match place.look(&self.tools.disks) {
            Ok(there) if there.as_ref() != Some(seen) && seen.is_file() => Presence::Nameless,
            Ok(there) if there.as_ref() != Some(seen) => Presence::Gone,
            Ok(_) | Err(_) => Presence::Here,
        }
    }

    /// Keeps what was opened for the engine.
    pub(super) fn opened(&mut self, id: AskId, opened: Result<Option<Opened>, Obstacle>) -> Answer {
        Answer::Opened(opened.map(|opened| match opened {
            Some(opened) => {
                self.open.insert(id.slot, (id, opened));
                ask::Opened::Open
            }
            None => ask::Opened::Absent,
        }))
    }

    fn opener(&self) -> Opener {
        let Tools { caching, disks, decorator, clock, .. } = &self.tools;
        let throttle = if caching.throttle { caching.limits } else { Limits::NONE };
        Opener { disks: disks.clone(), clock: *clock, decorator: decorator.clone(), throttle }
    }

    /// Opens an attached volume in place of what was open. The answer, unless it comes later.
    fn open(&mut self, id: AskId, volume: VolumeDescription, size: Bytes, opening: Opening) -> Option<Answer> {
        self.open.remove(&id.slot);
        let place = match Place::of(&volume, &self.tools.provider.home()) {
            Ok(place) => place,
            Err(why) => return Some(Answer::Opened(Ok(ask::Opened::Refused(why)))),
        };
        let (opener, sizes) = (self.opener(), opening::sizes(&volume, size));
        match opening {
            Opening::Fresh { before } => {
                Some(match Self::open_fresh(&opener, &volume, &place, &sizes, before.as_deref()) {
                    Ok(opened) => self.opened(id, Ok(opened)),
                    Err(refused) => Answer::Opened(refused),
                })
            }
            Opening::Used { epoch } => self.open_aside(id, move || opener.caching_used(&place, &sizes, epoch)),
            Opening::Again(_) if self.place.as_ref().is_some_and(|before| before.is_other(&place)) => {
                let why = "the provider says that it is another disk or file than it was".to_owned();
                Some(Answer::Opened(Err(why.into())))
            }
            Opening::Again(epoch) => {
                self.seen = place.look(&opener.disks).ok().flatten();
                self.place = Some(place.clone());
                self.open_aside(id, move || opener.caching_again(&place, &volume.id, &sizes, epoch))
            }
        }
    }

    /// Opens a volume that was just rented, which must be none of the disks `before`. `None`: its disk has not appeared yet.
    pub(crate) fn open_fresh(
        opener: &Opener,
        description: &VolumeDescription,
        place: &Place,
        sizes: &[Bytes],
        before: Option<&[DiskIdentity]>,
    ) -> Result<Option<Opened>, Result<ask::Opened, Obstacle>> {
        let (refused, id) = (|why: String| Err(Ok(ask::Opened::Refused(why))), &description.id.0);
        let known = |disk: &&DiskIdentity| before.into_iter().flatten().any(|there| is_same(there, disk));
        if let Some(disk) = place.disks().into_iter().find(known) {
            return refused(format!(
                "the provider says that the volume {id} is the disk with {disk}, which was in this machine before it was \
                 attached: nothing was written to it; let the service say which disk it plugs in"
            ));
        }
        if let Some(disk) = place.without_a_serial().filter(|_| before.is_none()) {
            return refused(format!(
                "the volume {id} was just rented, and whether the disk with {disk} was here before it was attached cannot be told: the daemon \
                 has restarted meanwhile, or the kernel did not tell; nothing was written to it"
            ));
        }
        match opener.caching_fresh(place, sizes).map_err(Err)? {
            None => Ok(None),
            Some(Fresh::Blank(opened)) => Ok(Some(opened)),
            Some(Fresh::Used) => refused(format!(
                "the volume {id} was just rented and is not blank, so it may be somebody's: nothing was written to it; see \
                 whose it is, and let the service rent out volumes that read as zeroes"
            )),
        }
    }

    /// Opens a volume that was used before on a thread of its own: it may not answer for long, and others may have it open.
    fn open_aside(
        &self,
        id: AskId,
        open: impl FnOnce() -> Result<Option<Opened>, Obstacle> + Send + 'static,
    ) -> Option<Answer> {
        let done = self.done.0.clone();
        let open = move || {
            // The device may have ended.
            let _ = done.send(Done::Opened(id, open()));
        };
        let spawned = std::thread::Builder::new().name("opening".into()).spawn(open);
        let why = spawned.err().map(|error| format!("a thread cannot be started: {error}"))?;
        Some(Answer::Opened(Err(why.into())))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_device::discovery::Disks;
    use surgetank_model::volume::{Tags, VolumeId, VolumeState};

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_disk_without_a_serial_is_fresh_only_if_it_was_looked_for_before_the_attach() {
        let tables = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tables.path().join("sys/block")).unwrap();
        let disks = Disks::under(tables.path().join("sys"), tables.path());
        let opener = Opener { disks, clock: Clock::start(), decorator: None, throttle: Limits::NONE };
        let description = VolumeDescription {
            id: VolumeId("v".to_owned()),
            state: VolumeState::Attached,
            volume_type: String::new(),
            size: Bytes::from_mib(1),
            tags: Tags::new(),
            device: None,
            disk: None,
            members: Vec::new(),
        };
        let (serial, lun) = (DiskIdentity::Serial("s".to_owned()), DiskIdentity::Lun(3));
        let says = |disk: &DiskIdentity, before: Option<&[DiskIdentity]>| {
            let (place, sizes) = (Place::Disk(disk.clone()), [Bytes::from_mib(1)]);
            match Lifecycle::open_fresh(&opener, &description, &place, &sizes, before) {
                Ok(None) => "it has not appeared".to_owned(),
                Err(Ok(ask::Opened::Refused(why))) => why,
                _ => panic!("there is no disk"),
            }
        };
        for (disk, before) in [(&serial, None), (&serial, Some(&[][..])), (&lun, Some(std::slice::from_ref(&serial)))] {
            assert_eq!(says(disk, before), "it has not appeared", "{disk} {before:?}");
        }
        assert!(says(&lun, None).contains("cannot be told"));
        assert!(says(&lun, Some(std::slice::from_ref(&lun))).contains("was in this machine before"));
    }
}
