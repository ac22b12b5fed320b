//! What a run did, in numbers.

use std::ops::AddAssign;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events handled.
    pub events: u64,
    /// Requests answered.
    pub requests: u64,
    /// Power cuts.
    pub power_cuts: u32,
    /// Daemon crashes.
    pub daemon_crashes: u32,
    /// Restarts that had to recover a caching volume and did.
    pub recoveries: u32,
    /// Times that a recovery read indexes in the place of segments.
    pub indexes_read: u32,
    /// Crashes while a recovery was going on.
    pub crashes_in_recovery: u32,
    /// Caching volumes adopted.
    pub adoptions: u32,
    /// Caching volumes released.
    pub releases: u32,
    /// Releases cancelled.
    pub cancels: u32,
    /// Drains that were to be finished.
    pub finishes: u32,
    /// Caching volumes lost or dropped by faults.
    pub failures: u32,
    /// Of those, with data on them.
    pub losses: u32,
    /// Losses of which all came back.
    pub restored: u32,
    /// Times that a volume, or both, answered nothing for a while.
    pub outages: u32,
    /// Ranges that became unreadable.
    pub latent: u32,
    /// Orderly stops.
    pub stops: u32,
    /// Ranges that the engine had recorded as healed.
    pub healings: u64,
    /// Owner records that were not persisted, or seemed not to be.
    pub owner_failures: u32,
    /// Requests answered with an error, under faults.
    pub errors: u64,
    /// Bytes drained, as sampled.
    pub drained_bytes: u64,
    /// Bytes that split sent to the backing volume, as sampled.
    pub split_bytes: u64,
    /// Bytes of reads answered by the cache, as sampled.
    pub hit_bytes: u64,
    /// Bytes that found the cache full, as sampled.
    pub evicted_bytes: u64,
    /// Times that I/Os got stuck.
    pub stuck: u32,
    /// Stored bits that flipped.
    pub rotten: u32,
    /// Flushes of either volume that failed and forgot.
    pub forgotten: u32,
    /// Caching volumes that vanished for good.
    pub vanished: u32,
    /// Times that the device grew.
    pub growths: u32,
    /// Times that the engine was told that the caching volume has grown.
    pub cache_growths: u32,
    /// Calls to grow a caching volume that the provider carried out.
    pub grown_volumes: u32,
    /// Times that it took what was new in use.
    pub caches_grown: u32,
    /// Of those, times that it had been asked to before, in vain.
    pub growths_taken_up: u32,
    /// Calls of the provider that went wrong.
    pub provider_faults: u32,
    /// Calls that were throttled.
    pub throttled: u32,
    /// Volumes that the provider could not make.
    pub failed_volumes: u32,
    /// Answers of the provider that a volume is not there which was.
    pub unknown: u32,
    /// Listings from before.
    pub stale: u32,
    /// Volumes that a creation made besides.
    pub twins: u32,
    /// Deletions that were accepted and failed.
    pub undeleted: u32,
    /// Caching volumes that the provider said had failed while they were in use.
    pub failed_in_use: u32,
    /// Caching volumes that the controller rented and deleted.
    pub rentals: u32,
    /// Switches of the map to the daemon.
    pub switches_in: u32,
    /// Switches to the backing volume.
    pub switches_out: u32,
    /// Switches that failed.
    pub switch_failures: u32,
    /// Of those, to the backing volume, because a flush had failed when the last request was answered.
    pub switches_withdrawn: u32,
    /// Crashes in the middle of a switch.
    pub crashes_in_switch: u32,
    /// Starts of a daemon that found the device suspended.
    pub found_suspended: u32,
    /// Starts that a daemon refused because of what was mapped by hand.
    pub refusals: u32,
    /// Requests that went straight to the backing volume.
    pub straight_requests: u64,
    /// Of those, requests that were answered while no daemon ran.
    pub answered_alone: u64,
    /// Fingerprint of the run.
    pub trace: u64,
}

impl Report {
    /// Moments at which something went wrong on purpose: crashes and faults.
    #[must_use]
    pub fn points(&self) -> u64 {
        let crashes = u64::from(self.power_cuts) + u64::from(self.daemon_crashes) + u64::from(self.stops);
        let volumes = [self.outages, self.latent, self.stuck, self.rotten, self.forgotten, self.vanished];
        let provider =
            [self.provider_faults, self.throttled, self.failed_volumes, self.unknown, self.stale, self.twins];
        let others = [self.undeleted, self.owner_failures, self.switch_failures];
        crashes + volumes.iter().chain(&provider).chain(&others).map(|&count| u64::from(count)).sum::<u64>()
    }
}

impl AddAssign<&Report> for Report {
    /// Adds the counts; the fingerprint stays.
    fn add_assign(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.power_cuts += other.power_cuts;
        self.daemon_crashes += other.daemon_crashes;
        self.recoveries += other.recoveries;
        self.indexes_read += other.indexes_read;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.adoptions += other.adoptions;
        self.releases += other.releases;
        self.cancels += other.cancels;
        self.finishes += other.finishes;
        self.failures += other.failures;
        self.losses += other.losses;
        self.restored += other.restored;
        self.outages += other.outages;
        self.latent += other.latent;
        self.stops += other.stops;
        self.healings += other.healings;
        self.owner_failures += other.owner_failures;
        self.errors += other.errors;
        self.drained_bytes += other.drained_bytes;
        self.split_bytes += other.split_bytes;
        self.hit_bytes += other.hit_bytes;
        self.evicted_bytes += other.evicted_bytes;
        self.stuck += other.stuck;
        self.rotten += other.rotten;
        self.forgotten += other.forgotten;
        self.vanished += other.vanished;
        self.growths += other.growths;
        self.cache_growths += other.cache_growths;
        self.caches_grown += other.caches_grown;
        self.growths_taken_up += other.growths_taken_up;
        self.grown_volumes += other.grown_volumes;
        self.provider_faults += other.provider_faults;
        self.throttled += other.throttled;
        self.failed_volumes += other.failed_volumes;
        self.unknown += other.unknown;
        self.stale += other.stale;
        self.twins += other.twins;
        self.undeleted += other.undeleted;
        self.failed_in_use += other.failed_in_use;
        self.rentals += other.rentals;
        self.switches_in += other.switches_in;
        self.switches_out += other.switches_out;
        self.switch_failures += other.switch_failures;
        self.switches_withdrawn += other.switches_withdrawn;
        self.crashes_in_switch += other.crashes_in_switch;
        self.found_suspended += other.found_suspended;
        self.refusals += other.refusals;
        self.straight_requests += other.straight_requests;
        self.answered_alone += other.answered_alone;
    }
}
