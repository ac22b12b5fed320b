//! Bugs on purpose, to see that this crate's tests find them: compiled in by the feature `planted-bugs` only, which nothing
//! but those tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// What hits in an exclusive second level stays there.
        HitStaysBehind,
        /// What the first level evicts is dropped.
        NotDemoted,
        /// An inclusive second level takes in nothing.
        NothingTakenIn,
        /// Shares that shrink lose what was used last.
        NewestLost,
        /// What a smaller first level evicts is dropped, not demoted.
        ShrinkDrops,
        /// Shares are never split.
        HullNotSplit,
        /// Blocks are looked up at one server of an application, whatever it has elsewhere.
        OneServer,
        /// The disk takes as long for a request whether or not others wait.
        NoQueue,
        /// A shared cache confuses blocks of different applications.
        BlocksConfused,
        /// The SLO is judged by the latency that the plan predicts.
        PlanBelieved,
        /// Accesses of an interval count in the next one.
        IntervalLate,
        /// Shares are what a plan gives at once, however far that is from what there was.
        PlanAtOnce,
    }
}
