//! Bugs on purpose, to see that the tests of life cycles find them: compiled in by the feature `planted-bugs` only,
//! which nothing but those tests may switch on, and even then asleep unless `SURGETANK_PLANT` names one.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The journal does not say that a volume is about to be created.
    IntentNotPersisted,
    /// The sweep leaves volumes alone that no journal knows.
    SweepIgnoresStrangers,
    /// A deletion that failed, or whose answer was lost, is taken for done.
    FailedDeleteIsDone,
    /// A volume whose deletion was asked for counts as deleted.
    AskedIsDeleted,
}

/// Whether a bug is awake.
#[cfg(feature = "planted-bugs")]
pub fn planted(bug: Bug) -> bool {
    static AWAKE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let awake = AWAKE.get_or_init(|| std::env::var("SURGETANK_PLANT").ok());
    awake.as_deref() == Some(&format!("{bug:?}"))
}

/// Never: the feature is off.
#[cfg(not(feature = "planted-bugs"))]
pub const fn planted(_: Bug) -> bool {
    false
}
