//! Bugs on purpose, to see that the tests of staging pools find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Memory takes in more than it holds.
        MemoryOverfilled,
        /// What overflows is never written to the SSD.
        SsdLeftOut,
        /// What the SSD takes in counts as drained, and once more when it is.
        SsdCountedAsDrained,
        /// The SSD drains beside the memory, as by a second agent.
        TwoAgents,
        /// The SSD drains at half its rate.
        SsdDrainsSlowly,
        /// All chunks of a process go to its first benefactor.
        NotStriped,
        /// A process has finished with its second last chunk.
        LastChunkForgotten,
        /// Jobs share the pool equally, however many processes they have.
        JobsShareEqually,
        /// A job computes on while it writes.
        NotBlocked,
        /// Jobs write nothing when they end.
        EndForgotten,
    }
}
