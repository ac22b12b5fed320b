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
        /// Memory is used again while it is read.
        ReadersIgnored,
        /// A commit does not look whether its benefactors are in the life that acknowledged the chunks.
        CommitWithoutIncarnation,
        /// A commit does not look whether somebody else committed meanwhile.
        CommitWithoutVersion,
        /// A group of transactions that failed is answered as a whole, though one alone was refused.
        GroupFailsTogether,
        /// Groups of a version that the target still needs are removed when they are written anew.
        UnpublishedReplaced,
        /// A transaction whose outcome is unknown is tried again without its receipt.
        RetriedWithoutReceipt,
        /// A refused transaction is answered while a copy of it is still under way.
        RefusedWhileUnderWay,
        /// A rename does not look whether its target is a directory that has entries.
        RenameOverFullDirectory,
        /// A directory is removed although an entry was made in it meanwhile.
        DirectoryRemovedWithEntries,
        /// Renames and unlinks pass a publication that they depend on.
        PublishedOutOfOrder,
        /// A publication of an old version ends the wait of a newer one.
        OldVersionDrains,
    }
}
