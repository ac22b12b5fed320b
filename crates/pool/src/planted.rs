//! Bugs on purpose, to see that the tests of who is let in find them: compiled in by the feature `planted-bugs` only, which nothing but those
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
