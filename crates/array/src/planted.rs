//! Bugs on purpose, to see that the crash tests find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until a test wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A joining member counts at assembly.
        JoiningCounts,
        /// Of two members of one slot, that of the lower generation counts.
        StaleCounts,
        /// A joining member that missed a session goes on from where it was.
        StaleJoinResumes,
        /// The replaced member is told so before the new one is active.
        RetiredFirst,
        /// The new member is active before what it was given is durable.
        JoiningNotFlushed,
        /// A region's bit is cleared before the discard is durable.
        BitClearedEarly,
        /// A region is written before its bit is durable.
        WrittenBeforeBit,
        /// A region that was ever discarded whole stays cleared although it was written again.
        ClearOverWrite,
        /// What lies between two discarded ranges of a region counts as discarded.
        GapIsDiscarded,
        /// A write over a region that is being copied does not wait for the copy.
        WriteInCopiedWindow,
        /// A region is copied while a write to it is in flight.
        CopyOverWrite,
        /// A write below the cursor goes to the old member alone.
        WriteBehindCursor,
        /// A discard goes to the old member alone.
        DiscardNotMirrored,
        /// A region is written twice while its durable mark still says that both members hold the same.
        TouchNotRecorded,
        /// A copied region is marked so before the old member is flushed.
        ProgressBeforeFlush,
        /// A write that the joining member failed leaves the region in sync.
        FailedDoubleIgnored,
        /// What a failed flush of the joining member may have forgotten counts as copied.
        ForgottenCopyCounts,
        /// A joining member that is dropped is not told apart from one that was there throughout.
        DroppedWithoutGeneration,
        /// The stripe is served by the new member before another one names it.
        SwitchedWithoutWitness,
        /// A start tells everybody of a member that may not be active durably.
        UnknownToldLate,
        /// A region that a resumed joining member may hold something of counts as blank.
        LeftoversBlank,
        /// The joining member serves reads of a range that is being written.
        ReadWhileWritten,
        /// An application's flush skips a member.
        FlushSkipsMember,
        /// Forced unit access is forgotten.
        FuaIgnored,
        /// A page of the bitmap of which one copy is damaged is believed.
        DamagedPageBelieved,
        /// A failed flush that the application did not ask for is not told to it.
        FlushFailureUnreported,
        /// Overlapping writes run together.
        NoRangeLock,
        /// A region is copied while a write to it is in flight that is one I/O.
        CopyOverSingle,
        /// A region whose bit was set ahead counts as blank after it was written.
        AheadCountsBlank,
    }
}
