//! Bugs on purpose, to see that the tests of the controller find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until a test wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A drain may be prolonged by rewriting, whatever the budget says.
        BudgetIgnoresRewrites,
        /// Changes wait only once the budget does not pay for the rest any more.
        FinishIsLate,
        /// The budget pays for the drain, and not for deleting the volume.
        ReserveForgotten,
        /// A boost begins whatever is left of the budget.
        StartIsFree,
        /// What may be absorbed until the next sample does not count.
        NextIntervalForgotten,
        /// A boost goes on until its budget is spent.
        BoostIsNotEnded,
        /// A volume that is deleted stays on the bill, and no budget pays for the next one.
        BillStaysOpen,
        /// What was asked for of one boost is asked of the next.
        WishOutlivesBoost,
        /// A backing volume that serves its load in time is taken for saturated.
        LoadIsBurst,
        /// A boost begins though it is expected to cost more than it saves.
        CostForgotten,
        /// A full cache waits for the end of a burst that has none.
        FullForEver,
        /// A boost for a burst that was announced begins whatever is left of the budget.
        AnnouncementIsFree,
        /// A burst that was announced is boosted although somebody has ended boosts since.
        AnnouncementOutlivesDrain,
        /// A volume grows though that is expected to cost more than it saves.
        GrowthCostForgotten,
        /// A volume grows whatever is left of the budget.
        GrowthIsFree,
        /// What a growth has left half done stays so until the boost ends.
        GrowthNotTakenUp,
    }
}
