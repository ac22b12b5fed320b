//! Bugs on purpose, to see that the crash tests find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until a test wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Segments are freed without a flush of the backing volume: what was drained from them may vanish.
        ReclaimWithoutBackingFlush,
        /// Segments are freed without a flush of the cache: records that superseded theirs may vanish.
        ReclaimWithoutCacheFlush,
        /// Recovery takes the first hole in a segment for its end.
        StopAtFirstHole,
        /// Recovery believes a record's summary without checking its data.
        DataChecksumIgnored,
        /// Records go to segments that no superblock names.
        UnlistedSegmentUsed,
        /// A segment is indexed before all of it is durable.
        IndexBeforeFlush,
        /// Recovery takes a damaged index for that of an empty segment.
        DamagedIndexIsEmpty,
        /// Segments are reused before the table page with their new generations is durable.
        TableNotFlushed,
        /// A freed segment keeps its generation: old records in it stay valid.
        GenerationNotRaised,
        /// Forced unit access is forgotten on the way to the log.
        FuaIgnoredInLog,
        /// Forced unit access is forgotten on the way to the backing volume.
        FuaIgnoredOnBacking,
        /// Writes go straight to the backing volume over records that recovery will replay.
        DirectOverReplayable,
        /// A drained range is marked clean even if it was written again meanwhile.
        CleanWithoutVersionCheck,
        /// Recovery replays newer records first, so that the older one wins.
        OlderRecordWins,
        /// CLEAN is written before the backing volume is flushed.
        CleanBeforeFlush,
        /// A flush of the caching volume that failed is forgotten when the next one succeeds.
        FailedCacheFlushForgotten,
        /// A record is forced to the media although others before it are not durable.
        ForcedBeforeOthers,
        /// Records of a segment are written before its first one is.
        SegmentBegunByMany,
        /// A record that never arrived counts because another segment repeats it.
        CutRecordsRepeated,
        /// Recovery replays a record whose write failed and is known to have failed, or takes what is damaged in it for a loss.
        FailedRecordsReplayed,
        /// Recovery forgets discards.
        DiscardsNotReplayed,
        /// A tombstone's segment may go before the segments whose records it covers.
        TombstoneNotCovered,
        /// Segments are freed in any order.
        ReusedTooEarly,
        /// The adopted cache is used before the owner record names it.
        OwnerDropped,
        /// An application's flush does not flush the cache.
        FlushSkipsCache,
        /// An application's flush does not flush the backing volume.
        FlushSkipsBacking,
        /// A read's copy is installed although the range was written meanwhile.
        FillsNotCancelled,
        /// Overlapping changes run together.
        NoRangeLock,
        /// Copies are dropped from under readers.
        PinsIgnored,
        /// Segments are freed while records are being appended to them.
        AppendsIgnored,
        /// The fresh superblock and table are not flushed before the cache is used.
        AdoptNotFlushed,
        /// What was drained before a failed flush of the backing volume is taken for safe.
        FailedFlushForgotten,
        /// The application is not told that a flush of its writes failed that it did not ask for.
        FlushFailureUnreported,
        /// A write that is durable by itself makes everything before it count as durable, too.
        ForcedWriteCoversAll,
        /// While the cache fails, every read answers EIO.
        FailingReadsFail,
        /// What the log cannot give is not read from the backing volume, although that has it.
        CleanReadFails,
        /// Lost ranges are read as the backing volume has them.
        LostRangesRead,
        /// Lost ranges count as overwritten although the write failed.
        FailedWriteHeals,
        /// A write over a part of a lost block heals all of it.
        HealRoundsUp,
        /// What a record that failed should have held is acknowledged and dropped.
        StrandedDropped,
        /// What a record that failed should have held goes to the backing volume while the record may still be replayed.
        StrandedTooEarly,
        /// The drain does not look at checksums.
        RotDrained,
        /// Reads do not look at checksums.
        RotRead,
        /// The cache is released before the owner record says what is lost.
        LossNotRecorded,
        /// The failed cache is released before what was drained is durable.
        DropWithoutFlush,
        /// A flush of the cache that fails counts as one that succeeds.
        CacheFlushFailureIgnored,
        /// What is drained counts as drained although the backing volume failed to write it.
        FailedWritesDrained,
        /// Once one block cannot be read, everything in the index counts as lost.
        AllLostWithOneBlock,
        /// Flushes that waited while the cache failed succeed, although something is lost.
        WaitingFlushesSucceed,
        /// What could not be read is not tried again.
        NoRetries,
        /// What fails to be read is not tried block by block: its neighbours are lost with it.
        NeighboursLost,
        /// Segments are used again when only one copy of the segment table says that they are free.
        SecondTableCopyForgotten,
        /// An orderly stop does not record what is durable.
        StopNotMarked,
        /// Changes over what is dirty prolong a drain that is to be finished.
        FinishHoldsNothing,
        /// A write that heals is answered before that is on record.
        HealingUnrecorded,
        /// A healing is recorded before its data are durable.
        HealingUnflushed,
        /// What a failed flush may have forgotten counts as healed.
        ForgottenHealingCounts,
        /// A write that heals takes the note that a flush has failed, so that the application's flush is not told.
        HealingTakesNote,
        /// The flush before a stop takes that note.
        OwnFlushTakesNote,
        /// A caching volume of which nothing can be read counts as lost at once.
        PatienceIgnored,
        /// It counts as lost at the end of patience without being asked once more.
        NoLastProbe,
        /// What a recovery cannot read counts as never having arrived.
        UnreadableIsTorn,
        /// So does what is damaged, although it is known to have been durable.
        DurableMarkIgnored,
        /// A recovery believes the older one of two copies of a page of the segment table.
        StaleTablePage,
        /// A recovery needs both superblocks.
        OneSuperblockSlotFatal,
        /// A recovery does not look at what records repeat of the ones before them.
        RepeatIgnored,
        /// A recovery takes every record that a crash cut short for the end of what it must look for.
        HoleHidesRecords,
        /// After a recovery records have sequences that the superblock speaks of already.
        SequencesReused,
        /// A volume that is read back overwrites what was overwritten since it was lost.
        RestoreOverHealed,
        /// What could not be read from a volume that was read back counts as back all the same.
        RestoreForgetsRanges,
        /// A loss that the user accepts is not on record.
        AcceptedReplayed,
        /// A write that heals takes the note that something was lost, so that no flush tells it.
        HealConsumesNote,
        /// Reads that wait for a volume that does not answer fail when it does.
        ParkedReadsFail,
        /// A job of the drain that could not read everything keeps its segments pinned.
        FailedJobKeepsPins,
        /// A change that cannot read the rest of its block keeps the room that the log promised to it.
        FailedMergeKeepsRoom,
        /// What a failed cache left to be written to the backing volume counts as in flight for ever.
        RescueStaysInFlight,
        /// The superblock of a failing log is written while another one is on its way.
        TwoSuperblocksAtOnce,
        /// Records go to the part by which the volume grows before a superblock names it.
        GrownBeforeMarked,
        /// Only one superblock names that part before records go there.
        GrowthMarkedOnce,
        /// A superblock names that part before its pages of the segment table are durable.
        GrowthNotFlushed,
        /// A recovery takes the volume for as large as when it was adopted.
        OldSizeBelieved,
        /// After a crash a volume that has grown counts as used, though its log has not grown.
        UnusedPartForgotten,
        /// What was written while the engine was not in the path counts as durable.
        UnseenWritesDurable,
    }
}
