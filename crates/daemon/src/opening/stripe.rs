//! A caching volume that is a stripe over several volumes of a provider: an array of members that live no longer than a boost.

use std::io;

use surgetank_array::create::{Options, Regions};
use surgetank_array::{ArrayId, Assembly, Config, Device, MemberId, Plan, Target, assemble, create};
use surgetank_device::Volume;
use surgetank_device::volume::array::{ArrayVolume, Member, read_head, write_creation};
use surgetank_rental::Obstacle;

use super::{Found, Identity, Opened, Opener, Place, ends_are_blank, read};
use crate::clock::Clock;

/// Bytes of a chunk: a write of the log is spread over several members, and each gets requests of a size at which volumes reach
/// their bandwidth.
const CHUNK: u32 = 128 << 10;
/// Bytes of a region. Members are not replaced, so it matters to the size of the bitmap alone.
const REGION: u32 = 4 << 20;

/// The members of an array, opened and told apart.
pub(super) struct Stripe {
    members: Vec<Member>,
    plan: Plan,
}

impl Stripe {
    /// Finds out which member each of the volumes is. They come with what people call them.
    pub(super) fn assemble(volumes: Vec<(String, Box<dyn Volume>)>, clock: Clock) -> Result<Self, Obstacle> {
        let mut members = members(volumes);
        let heads: Vec<_> = members.iter_mut().map(|member| read_head(&mut *member.volume, || clock.now())).collect();
        let devices = members.iter().zip(&heads).map(|(member, head)| Device {
            target: member.id,
            name: &member.name,
            size: member.volume.size(),
            head: head.as_deref(),
        });
        match assemble(None, &devices.collect::<Vec<_>>()) {
            Assembly::Whole(plan) | Assembly::Degraded(plan, _) => Ok(Self { members, plan }),
            Assembly::Refused(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                Err(format!("the volumes of the stripe cannot be put together: {}", reasons.join("; ")).into())
            }
        }
    }

    /// Reads a range, of whole blocks, without taking the array into use.
    pub(super) fn read(&mut self, offset: u64, length: usize, clock: Clock) -> io::Result<Vec<u8>> {
        let (geometry, end) = (self.plan.geometry, offset + length as u64);
        let chunk = u64::from(geometry.chunk);
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while at < end {
            let (number, within) = (at / chunk, at % chunk);
            let (slot, row) = (number % u64::from(geometry.members), number / u64::from(geometry.members));
            let piece = (chunk - within).min(end - at);
            let target = self.plan.active.iter().find(|place| u64::from(place.slot) == slot).map(|place| place.target);
            let member = self.members.iter_mut().find(|member| Some(member.id) == target);
            let member = member.ok_or_else(|| io::Error::other("a member of the stripe is missing"))?;
            let there = geometry.data_offset() + row * chunk + within;
            bytes.extend(read(&mut *member.volume, there, piece as usize, clock)?);
            at += piece;
        }
        Ok(bytes)
    }
}

fn members(volumes: Vec<(String, Box<dyn Volume>)>) -> Vec<Member> {
    let numbered = (0..).zip(volumes);
    numbered.map(|(number, (name, volume))| Member { id: Target(number), name, volume }).collect()
}

impl Opener {
    fn named(&self, volumes: Vec<Found>) -> Vec<(String, Box<dyn Volume>)> {
        volumes.into_iter().map(|found| (found.name, self.dressed(found.volume))).collect()
    }

    pub(super) fn assemble(&self, volumes: Vec<Found>) -> Result<Stripe, Obstacle> {
        Stripe::assemble(self.named(volumes), self.clock)
    }

    /// Makes blank volumes a stripe.
    pub(super) fn format(&self, volumes: Vec<Found>) -> Result<Stripe, Obstacle> {
        let mut members = members(self.named(volumes));
        let options = Options {
            array: ArrayId(rand::random()),
            logical_block: members.iter().map(|member| member.volume.logical_block()).max().unwrap_or(512),
            chunk: CHUNK,
            region: REGION,
            regions: Regions::Written,
        };
        let of = |member: &Member| (member.id, MemberId(rand::random()), member.volume.size());
        let creation = create(&options, &members.iter().map(of).collect::<Vec<_>>());
        let creation = creation.map_err(|rejected| format!("the volumes cannot become a stripe: {rejected}"))?;
        let written = write_creation(&mut members, &creation, || self.clock.now());
        written.map_err(|error| error.to_string())?;
        Stripe::assemble(members.into_iter().map(|member| (member.name, member.volume)).collect(), self.clock)
    }

    /// Takes a stripe into use.
    pub(super) fn serve(&self, stripe: Stripe, place: &Place, identity: Identity) -> Result<Opened, Obstacle> {
        let Stripe { members, plan } = stripe;
        let opened = ArrayVolume::open(&plan, members, Config::default(), self.clock.now());
        // Nobody replaces its members.
        let (volume, _) = opened.map_err(|error| format!("the stripe cannot be used: {error}"))?;
        Ok(Opened { volume: Box::new(volume), place: place.clone(), identity, geometry: Some(plan.geometry) })
    }

    /// The stripe that volumes are, if nothing was ever written on it.
    pub(super) fn blank_stripe(&self, volumes: Vec<Found>) -> Option<Stripe> {
        let mut stripe = self.assemble(volumes).ok()?;
        let size = stripe.plan.geometry.size();
        let blank = ends_are_blank(size, |offset, length| stripe.read(offset, length, self.clock)).ok()?;
        blank.then_some(stripe)
    }
}
