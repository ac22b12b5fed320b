//! Bugs on purpose, to see that this crate's tests find them: compiled in by the feature `planted-bugs` only, which nothing
//! but those tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Reads that the sample has too many or too few of are not given to the hits.
        AdjustmentMissing,
        /// The end of an interval leaves all weights as they are.
        AgeingMissing,
        /// What the sample stands for does not age with the reads.
        RepresentedKept,
        /// Keys leave a full sample, and the threshold stays where it was.
        ThresholdKept,
        /// The rate falls, and a sampled access stands for as many as before.
        WeightKept,
        /// No sample takes the place of an old one.
        SampleKept,
        /// A write counts as a read.
        WriteCounted,
        /// A write brings its block into the cache.
        WriteAllocates,
        /// A write does not renew a block that is cached.
        WriteIgnored,
        /// How deep a block had sunk before it was written is forgotten.
        DepthForgotten,
        /// When a block was written last is not kept as positions are dealt anew.
        WriteMisplaced,
        /// A discarded block stays cached.
        DiscardIgnored,
        /// A write brings a discarded block back.
        DiscardUndone,
        /// Memory is not bounded by the number of keys.
        KeysUnbounded,
        /// Miniatures see the blocks that are not sampled too.
        MiniatureSeesAll,
        /// Miniatures are as large as what they stand for.
        MiniatureUnscaled,
        /// Reads that were sampled too many or too few times change nothing at the sizes of miniatures.
        MiniatureUnadjusted,
        /// A miniature keeps what is discarded.
        MiniatureKeepsDiscarded,
        /// A miniature keeps what is discarded with many other blocks.
        MiniatureKeepsRange,
        /// A write brings its block into miniatures.
        MiniatureTakesWritten,
        /// Reads of miniatures do not lose weight.
        MiniatureAgeless,
        /// What was before another mix counts on at the sizes of miniatures.
        MiniatureKeepsMix,
    }
}
