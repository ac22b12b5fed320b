//! Where bugs showed that a search finds late: these runs are tried first. Each is one of its family's seeds that the search would
//! come to, so that what is found here is found by the campaigns; a run in which a bug no longer shows costs that run alone.

use surgetank_cache::planted::Bug;
use surgetank_sim::Family;

/// A bug, and the run in which the search found it.
pub const RUNS: &[(Bug, Family, u64)] = &[
    (Bug::FinishHoldsNothing, Family::Overwrites, 235),
    (Bug::FlushSkipsCache, Family::Superseding, 129),
    (Bug::PinsIgnored, Family::Superseding, 27),
    (Bug::DataChecksumIgnored, Family::Outages, 744),
    (Bug::IndexBeforeFlush, Family::Overwrites, 326),
    (Bug::DamagedIndexIsEmpty, Family::Errors, 241),
    (Bug::TableNotFlushed, Family::Outages, 26),
    (Bug::CleanBeforeFlush, Family::Errors, 55),
    (Bug::FailedFlushForgotten, Family::ForgetfulFlushes, 20),
    (Bug::FlushFailureUnreported, Family::ForgetfulFlushes, 121),
    (Bug::CleanReadFails, Family::Losses, 794),
    (Bug::FailedWriteHeals, Family::Losses, 1237),
    (Bug::RotRead, Family::Rot, 52),
    (Bug::WaitingFlushesSucceed, Family::Errors, 194),
    (Bug::NeighboursLost, Family::Rot, 36),
    (Bug::SecondTableCopyForgotten, Family::TableCopies, 10),
    (Bug::HealingUnflushed, Family::Losses, 37),
    (Bug::NoLastProbe, Family::Outages, 326),
    (Bug::UnreadableIsTorn, Family::Losses, 80),
    (Bug::StaleTablePage, Family::Errors, 326),
    (Bug::RepeatIgnored, Family::Stops, 84),
    (Bug::TwoSuperblocksAtOnce, Family::Errors, 42),
    (Bug::GrownBeforeMarked, Family::CacheGrowth, 5),
    (Bug::GrowthMarkedOnce, Family::CacheGrowth, 28),
    (Bug::GrowthNotFlushed, Family::CacheGrowth, 444),
    (Bug::OldSizeBelieved, Family::CacheGrowth, 20),
    (Bug::UnusedPartForgotten, Family::CacheGrowth, 2),
    (Bug::UnseenWritesDurable, Family::Mapped, 993),
];
