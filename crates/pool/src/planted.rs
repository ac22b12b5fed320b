//! Bugs on purpose, to see that tests find them: compiled in by the feature `planted-bugs` only, which nothing but those
//! tests may switch on, and even then asleep until one of them wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A request is let in whatever it shows.
        TokenUnchecked,
        /// A token counts after it has expired.
        ExpiryIgnored,
        /// A token that was taken back is let in.
        RevokedAdmitted,
        /// A session goes on whose token was taken back.
        SessionOutlivesToken,
        /// Whoever has a token may ask a manager anything.
        RightsUnchecked,
    }
}

/// Of holes of files.
pub mod holes {
    surgetank_model::plant_bugs! {
        /// A bug that can be planted.
        pub enum Bug {
            /// A writer that catches up counts holes that are not committed as if they were.
            LostInCatchUp,
            /// What is written over a hole is, as long as it is not committed, over nothing.
            FormerForgotten,
            /// Holes count as nothing when it is chosen what one commit names.
            AnyGroupsWait,
            /// A hole that is punched is not committed at once.
            PunchWaits,
        }
    }
}
