//! Bugs on purpose, to see that the models' tests find them: compiled in by the feature `planted-bugs` only, which nothing but
//! those tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Copies of a chunk lie in one failure domain.
        SameDomain,
        /// Benefactors are declared dead although most leases were lost at once.
        NoHold,
        /// A buffer is filled again while chunks in it are not drained.
        BufferReused,
        /// A chunk whose bytes have not come yet is drained.
        DrainedBeforeStored,
        /// A table may name chunks whose bytes have not come.
        SealedBeforeStored,
        /// What the target still needs of an earlier version is dropped.
        NeededIgnored,
        /// When a session ends, what it has committed is dropped as well.
        EndedDropsAll,
        /// Room is left for a draft that was withdrawn.
        DraftStaysCounted,
        /// A chunk is taken that its session has withdrawn before it came.
        WithdrawnTaken,
        /// A table that was sealed and never will be committed is kept while its session goes on.
        ObsoleteKept,
        /// Memory is used again while it is read.
        ReadersIgnored,
        /// A commit does not look whether its benefactors are in the life that acknowledged the chunks.
        CommitWithoutIncarnation,
        /// A commit does not look whether somebody else committed meanwhile.
        CommitWithoutVersion,
        /// Who opens a file does not look whether another session rewrites it.
        RewriterUnseen,
        /// Who rewrites a file does not look whether others have it open for writing.
        RewriterNotAlone,
        /// What is written into a part of a chunk takes the place of all of it.
        OverlayTakesAll,
        /// Zeros in front of what is written count as written.
        GapCounts,
        /// A group of transactions that failed is answered as a whole, though one alone was refused.
        GroupFailsTogether,
        /// Groups of a version that the target still needs are removed when they are written anew.
        UnpublishedReplaced,
        /// A transaction whose outcome is unknown is tried again without its receipt.
        RetriedWithoutReceipt,
        /// A refused transaction is answered while a copy of it is still under way.
        RefusedWhileUnderWay,
        /// The receipt of a transaction is deleted while a copy of it is still under way.
        ReceiptForgottenEarly,
        /// A creation does not compare what its manager knew before.
        KnownNotCompared,
        /// A rename does not look whether its target is a directory that has entries.
        RenameOverFullDirectory,
        /// A directory is removed although an entry was made in it meanwhile.
        DirectoryRemovedWithEntries,
        /// An entry and the node that it stood for are read one after the other.
        EntryUnconfirmed,
        /// What was unlinked or moved away is seen as long as the target still has it.
        HiddenSeen,
        /// A directory that was moved is looked for where the target does not have it yet.
        MoveIgnored,
        /// Renames and unlinks pass a publication that they depend on.
        PublishedOutOfOrder,
        /// A benefactor that replaces another gets only the chunks that are written from then on.
        HoleAfterReplacement,
        /// A column is committed with fewer copies than promised.
        FewerCopiesCommitted,
        /// A commit whose outcome is unknown counts.
        UnknownCommitCounts,
        /// A late answer to an earlier commit counts as that to the present one.
        LateAnswerCounts,
        /// A file that has failed says later that all is well.
        FailureForgotten,
        /// Copies are made at once and without end, also while most leases are gone.
        RepairStorm,
        /// A place is named for a chunk although it is in another life than the one that got the copy.
        RepairedWithoutIncarnation,
        /// A benefactor that leaves may go while groups name it in a former life.
        GoesTooEarly,
        /// Commits still name a benefactor that leaves.
        LeavingIsNamed,
        /// What a benefactor that leaves has on SSD counts in its new life.
        LeavingIsRenamed,
        /// A benefactor that returns without a chunk counts as if it had it.
        ReturnedCounts,
        /// What a dead benefactor has on SSD counts as lost before it returns.
        DeadIsLost,
        /// A table that is sealed again ends the chunks that it names.
        SealedAgainDrops,
        /// A late seal takes the place of a later one.
        LateSealCounts,
        /// What repair brings is added to what a session had sealed as the same version for a commit that never took place.
        AdoptedBesideSealed,
        /// A process that begins to watch takes for granted that nobody has anything of a former life.
        NewWardenAsksNobody,
        /// What a benefactor has in vain is never compared with the store.
        StraysKept,
        /// Files leave the pool that the target does not have.
        UndrainedEvicted,
        /// A chunk whose move to SSD was begun leaves memory at once.
        MemoryFreedBeforeMoved,
        /// A commit does not compare which chunks have left the pool since its writer looked.
        CommitOverMoved,
        /// A draft gets what came later while a version is to be published from it.
        DraftChangedWhileItWaits,
        /// Chunks of a version that was written over meanwhile leave the pool.
        OldVersionTaken,
        /// A segment of the SSD's log is filled again while records in it count.
        SegmentReused,
        /// A record counts as moved before its copy is flushed.
        CopyNotFlushed,
        /// What is over is copied, and keeps its room.
        OverCopied,
        /// Chunks take the room that compaction needs.
        ReserveTaken,
        /// Segments are compacted of which nothing is won.
        CompactedInVain,
        /// Of two records of one name the earlier counts.
        OldCopyWins,
        /// A copy that a power cut tore hides the record that it was made of.
        TornCopyHides,
        /// Scrubbing passes over what is on SSD.
        ScrubPassesOverSsd,
        /// What scrubbing finds damaged counts as good.
        ScrubbedDamageKept,
        /// A chunk that was to take the place of a damaged one, and did not come, counts as good.
        FailedCopyCounts,
        /// One mount may take all the room.
        RoomUndivided,
        /// Whose mount may take no more is refused, and what is in memory stays there.
        RefusedWithoutClosing,
        /// Room that a mount has returned counts as its own.
        ReturnedRoomCounts,
        /// A chunk that takes the place of a damaged one is read before it has come.
        ReadBeforeStored,
        /// Scrubbing does not wait for the end of requests.
        ScrubBesideRequests,
        /// The drain waits for a target that does not answer before it goes on with another.
        StuckTargetStalls,
        /// A file that has waited for longer than the limit waits for younger ones.
        AgeIgnored,
        /// A change whose attempt has failed counts as one that nobody has made.
        AttemptForgotten,
        /// A file that was removed is passed over though what comes before its removal is not at the target yet.
        PassedUnready,
        /// The same, though something at the target is moved before.
        PassedOverMoves,
        /// Who publishes no more removes drafts of who does.
        DraftOfAnotherRemoved,
        /// A publication of an old version ends the wait of a newer one.
        OldVersionDrains,
        /// A session's locks are not compared with those of others.
        LockedTwice,
        /// A session that has a file's locks to itself need not return them before another locks it.
        WholeIgnored,
        /// A session's locks are in the way after it has ended.
        LockOutlivesSession,
        /// A copy of an earlier request for locks, which comes late, counts.
        LateLockCounts,
        /// A row that has changed keeps the parity that it had.
        StaleParity,
        /// A commit does not wait for parity.
        CommittedBeforeParity,
        /// Two members of a row are taken for each other.
        WrongMember,
        /// A chunk is made again of fewer members than its row needs.
        DecodedOfTooFew,
        /// Members that came damaged are taken for whole.
        MemberUnverified,
        /// A table does not say what the other members of its rows are.
        ElsewhereForgotten,
        /// Who takes a place over does not say what the others are of rows of which it has no member.
        OthersForgotten,
        /// A part of a row leaves the pool, and the rest stays.
        RowLeavesInPart,
        /// Unlinking one name of a file takes all of them away.
        UnlinkDropsAllNames,
        /// A new version of a file is published under one of its names alone.
        OneNamePublished,
        /// A file that was unlinked, and that nobody has open, counts against the quota of its user.
        UnlinkedCounts,
        /// What the target has counts against the quota of bytes.
        DrainedCounts,
        /// What is reserved for a file counts beside what was committed of it.
        ReservedCountsTwice,
        /// A later reservation of a session for a shorter file takes the place of the former one.
        ReservationShrinks,
        /// A reservation does not look whether the file still counts what it counted when the room was given.
        ReservedThoughDrained,
        /// Who opens a file once more has no reservation any more.
        ReservationDropped,
        /// A manager gives all that was free at its last look.
        ShareIgnored,
        /// What a manager has given does not count until it looks again.
        GrantForgotten,
        /// What was given since a look began is taken for what that look has not seen, and more is refused.
        GrantSeenTwice,
        /// What a program was told is written is refused afterwards.
        TakenRefused,
        /// A reservation does not look whose the file is by now.
        ReservedForAnother,
    }
}
