//! Bugs on purpose, to see that the model's test and the daemon's find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until one wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// What a read of the backing volume returned is cached although the range was changed meanwhile.
        RacingFillKept,
        /// A read that begins while its range is being changed fills the cache.
        FillDuringChange,
        /// Of two writes in flight to one range, each is cached.
        RacingWriteKept,
        /// A written block stays cached as it was.
        StaleAfterWrite,
        /// A write of a part of a block leaves the block cached.
        StaleAfterPart,
        /// A discarded range stays cached.
        StaleAfterDiscard,
        /// What a failed write was to bring is cached.
        FailedWriteCached,
        /// What a failed read of the backing volume left in the buffer is cached.
        FailedFillCached,
        /// An evicted block is still found.
        EvictedStillFound,
        /// A segment is filled again while a read of it is in flight.
        ReadersIgnored,
        /// A segment whose write failed counts as written.
        FailedSegmentCounts,
        /// A block that changed while its segment was evicted is written again as it was.
        ChangedSurvivorKept,
        /// What a read of a leaving segment failed to return is written again.
        FailedSurvivorsKept,
        /// A failed read of a member fails the request.
        MemberFailureAnswered,
        /// A segment that was dropped is filled again while a read or write of it is in flight.
        DroppedReused,
        /// The checksum of what is read is not asked for.
        Unchecked,
        /// A cache that is to be smaller stays as large.
        LimitForgotten,
        /// A segment is used again while its member is being told that nothing is there.
        ParkedBeforeTold,
        /// A segment is read before its write has ended.
        ReadBeforeWritten,
    }
}
