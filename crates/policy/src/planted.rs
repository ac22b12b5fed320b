//! Bugs on purpose, to see that the tests of budgets find them: compiled in by the feature `planted-bugs` only, which
//! nothing but those tests may switch on, and even then asleep until a test wakes one.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A drain may be prolonged by rewriting, whatever the budget says.
    BudgetIgnoresRewrites,
    /// Changes wait only once the budget does not pay for the rest any more.
    FinishIsLate,
    /// The budget pays for the drain, and not for giving the volume back.
    ReserveForgotten,
    /// A boost begins whatever is left of the budget.
    StartIsFree,
    /// What may be absorbed until the next sample does not count.
    NextIntervalForgotten,
    /// A boost goes on until its budget is spent.
    BoostIsNotEnded,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::BudgetIgnoresRewrites,
        Self::FinishIsLate,
        Self::ReserveForgotten,
        Self::StartIsFree,
        Self::NextIntervalForgotten,
        Self::BoostIsNotEnded,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static AWAKE: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Wakes one bug, or none, for the controllers of this thread.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    AWAKE.set(bug);
}

/// Whether a bug is awake.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: Bug) -> bool {
    AWAKE.get() == Some(bug)
}

/// Never: the feature is off.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
