//! Bugs on purpose, to see that this crate's tests find them: compiled in by the feature `planted-bugs` only, which nothing
//! but those tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Placement counts every server as reachable.
        ConnectivityIgnored,
        /// No cut tells the program which servers an application reaches.
        CutsIgnored,
        /// The bound on the latency is slo × fair, not (1 + slo) × fair.
        FactorWithoutOne,
        /// The hull has all points of the curve.
        HullNotConvex,
        /// Each application on its own may take all of a first-level server.
        CapacityPerApplication,
        /// The margin loosens the bound.
        MarginLoosens,
        /// The fair share divides the level by all applications, not each server by its own.
        FairSharePerLevel,
        /// The disk of an inclusive hierarchy misses as if both levels held different blocks.
        InclusiveAdds,
        /// No application of an inclusive hierarchy lives on its first level alone.
        FirstLevelAloneIgnored,
        /// Applications of which too little is known have less than their fair shares.
        UnknownShrinks,
        /// Previous plans are kept, however good another one is.
        WorsePlanKept,
        /// Previous plans are kept although they break an SLO.
        BrokenPlanKept,
        /// Every solution takes the place of the previous plan.
        PreviousIgnored,
        /// Plans are as far from the previous one as they like.
        ChangeUnbounded,
        /// Applications that have violated their SLO twice keep the plan.
        ViolationsIgnored,
        /// What would make a problem feasible is half of what it takes.
        ShortfallHalved,
        /// Placement fills one server after the other.
        LevellingIgnored,
        /// A surface may rise with the size of a cache.
        SurfaceRises,
        /// Combinations of shares are not compared with what servers have.
        CombinationsUnfiltered,
        /// What combinations leave of servers is not handed out.
        RemainderIdle,
        /// It is handed out equally, whatever anybody gains by it.
        RemainderEqual,
        /// Applications that do not split their shares are planned and judged by their hulls.
        EstimateIgnored,
        /// All applications have the problem's latencies.
        OwnLatenciesIgnored,
        /// No plan says that it changes more than allowed.
        ChangeUnsaid,
        /// Shared caches are divided as if all applications accessed them at one rate.
        RatesIgnored,
        /// A cache counts as small as it was when it was last seen, although it may have grown since.
        GrowthForgotten,
        /// A share is given before it is free.
        GivenBeforeFree,
        /// A boost may rent before caches are smaller.
        RentedBeforeFree,
        /// What boosts have is free.
        BoostsUncounted,
        /// Caches become larger while a boost waits for room.
        BoostsWaitBehindCaches,
    }
}
