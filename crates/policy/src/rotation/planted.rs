//! Bugs on purpose, to see that the tests of rotation find them; as those of the controller ([`crate::planted`]).

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A rotation begins when credits are too few already.
        RotationIsLate,
        /// A rotation of one member at a time takes them all.
        RotationIsNotStaggered,
        /// A replacement begins whatever is left of the budget.
        RotationIsFree,
        /// A refused replacement is tried again at once.
        RotationDoesNotWait,
        /// A copy costs no credits.
        CopyIsFree,
        /// What a member served while it joined does not count.
        SuccessorIsFull,
        /// A member whose credits do not last until a successor has its slot is never replaced.
        LateIsNever,
        /// A copy that waited for credits counts as how long copies take.
        StarvedCopiesTeach,
        /// A scratch array is swapped although it holds something.
        SwapsWhatIsFull,
    }
}
