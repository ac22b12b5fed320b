//! What is read and written to make an array of volumes, before it serves. These functions wait for the volumes.

use std::io;
use std::time::Duration;

use surgetank_array::Creation;
use surgetank_array::create::Structure;
use surgetank_array::format::SUPERBLOCKS_LENGTH;
use surgetank_model::Instant;

use super::super::{Completion, Failure, Operation, Volume, VolumeIo};
use super::Member;
use crate::buffer::Buffer;
use crate::poller::Poller;

/// A volume that has not answered after this counts as failed. It may still answer: it is of no more use.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why an array could not be made. One sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A member failed.
    #[error("{name} cannot be made a member of an array: {failure}; use another volume")]
    Member {
        /// What people call it.
        name: String,
        /// What it answered.
        failure: Failure,
    },
    /// A structure is for a volume that was not given.
    #[error("the creation names a volume that was not given: give all of them")]
    NoVolume,
    /// The volumes cannot be waited for.
    #[error("the members of an array cannot be waited for: {0}")]
    Poller(#[from] io::Error),
}

/// The first bytes of a volume, where a member's superblocks are; `None`: they cannot be read. Waits for the volume, on
/// which nothing else is in flight. `clock` is the time that the volume is driven by.
pub fn read_head(volume: &mut dyn Volume, clock: impl Fn() -> Instant) -> Option<Vec<u8>> {
    let length = u64::from(SUPERBLOCKS_LENGTH).min(volume.size());
    let buffer = Buffer::zeroed(length as usize);
    let io = io(0, Operation::Read, 0, Some(&buffer));
    let results = run(&mut [volume], vec![(0, io)], &clock).ok()?;
    results.first()?.ok()?;
    // SAFETY: the read has ended, and nothing else is in flight.
    Some(unsafe { buffer.bytes() }.to_vec())
}

/// Makes the members an array, durably. Waits for their volumes, on which nothing else is in flight; writes to all of them
/// at the same time. `clock` is the time that they are driven by.
///
/// # Errors
/// The first failure. Then the volumes are no array, or hold parts of one that was never served.
pub fn write_creation(
    members: &mut [Member],
    creation: &Creation,
    clock: impl Fn() -> Instant,
) -> Result<(), SetupError> {
    for structures in [&creation.bitmaps, &creation.superblocks] {
        let writes = structures.iter().map(|structure| write(members, structure)).collect::<Result<_, _>>()?;
        all(members, writes, &clock)?;
        let flushes = (0..members.len()).map(|place| (place, io(place as u64, Operation::Flush, 0, None))).collect();
        all(members, flushes, &clock)?;
    }
    Ok(())
}

/// The write of a structure, with the place of its member.
fn write(members: &[Member], (target, offset, bytes): &Structure) -> Result<(usize, VolumeIo), SetupError> {
    let place = members.iter().position(|member| member.id == *target).ok_or(SetupError::NoVolume)?;
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.unique().expect("a new buffer has one handle").copy_from_slice(bytes);
    Ok((place, io(*offset, Operation::Write { fua: false }, *offset, Some(&buffer))))
}

fn io(token: u64, operation: Operation, offset: u64, buffer: Option<&Buffer>) -> VolumeIo {
    let memory = buffer.map(|buffer| buffer.slice(0, buffer.len())).into_iter().collect();
    VolumeIo { token, operation, offset, length: buffer.map_or(0, |buffer| buffer.len() as u64), memory }
}

fn all(members: &mut [Member], ios: Vec<(usize, VolumeIo)>, clock: &dyn Fn() -> Instant) -> Result<(), SetupError> {
    let mut volumes: Vec<&mut dyn Volume> = members.iter_mut().map(|member| &mut *member.volume as _).collect();
    let results = run(&mut volumes, ios, clock)?;
    match results.into_iter().zip(members).find_map(|(result, member)| Some((result.err()?, member))) {
        Some((failure, member)) => Err(SetupError::Member { name: member.name.clone(), failure }),
        None => Ok(()),
    }
}

/// Does I/Os, each with the place of its volume, and waits for them: the first failure of each volume.
fn run(
    volumes: &mut [&mut dyn Volume],
    ios: Vec<(usize, VolumeIo)>,
    clock: &dyn Fn() -> Instant,
) -> io::Result<Vec<Result<(), Failure>>> {
    let poller = Poller::new()?;
    for volume in volumes.iter() {
        volume.descriptor().map_or(Ok(()), |descriptor| poller.add(descriptor, 0))?;
    }
    let begun = clock();
    let mut in_flight = vec![0; volumes.len()];
    for (place, io) in ios {
        in_flight[place] += 1;
        volumes[place].submit(begun, io);
    }
    let mut results = vec![Ok(()); volumes.len()];
    let (mut ended, mut keys): (Vec<Completion>, Vec<u64>) = (Vec::new(), Vec::new());
    loop {
        let now = clock();
        for ((volume, left), result) in volumes.iter_mut().zip(&mut in_flight).zip(&mut results) {
            volume.poll(now, &mut ended);
            *left -= ended.len();
            let failed = ended.drain(..).find_map(|completion| completion.result.err());
            *result = result.and(failed.map_or(Ok(()), Err));
        }
        let left = (begun + TIMEOUT).as_nanoseconds().saturating_sub(now.as_nanoseconds());
        if in_flight.iter().all(|left| *left == 0) {
            return Ok(results);
        }
        if left == 0 {
            for (_, result) in in_flight.iter().zip(&mut results).filter(|(left, _)| **left > 0) {
                *result = result.and(Err(Failure::Io));
            }
            return Ok(results);
        }
        let deadline = volumes.iter().filter_map(|volume| volume.next_deadline()).min();
        let deadline = deadline.map(|at| at.as_nanoseconds().saturating_sub(now.as_nanoseconds()));
        poller.wait(Some(Duration::from_nanos(deadline.map_or(left, |deadline| deadline.min(left)))), &mut keys)?;
    }
}
