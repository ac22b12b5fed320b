//! Bugs on purpose, to see that the crash tests and the tests of life cycles find them: compiled in by the feature
//! `planted-bugs` only, which nothing but those tests may switch on, and even then asleep until a test wakes one.

surgetank_model::plant_bugs! {
    /// A bug that can be planted.
    pub enum Bug {
        /// The provider is asked to grow a volume before the record says so.
        GrowthNotPersisted,
        /// A volume is created before the record says so.
        IntentNotPersisted,
        /// The sweep leaves volumes alone that no record knows.
        SweepIgnoresOrphans,
        /// A deletion that failed, or whose answer was lost, is taken for done.
        FailedDeleteIsDone,
        /// A volume whose deletion was asked for counts as deleted.
        AskedIsDeleted,
        /// The caching volume is used without a tag that says so.
        TagForgotten,
        /// A tag that could not be set counts as set.
        FailedTagIgnored,
        /// A creation whose answer was lost is forgotten instead of being looked for by its token.
        TokenNotLookedFor,
        /// Every creation has the same token.
        TokenReused,
        /// A call of the provider is made while another one is under way.
        CallsOvertake,
        /// A volume that is open for the engine is not closed before it is detached.
        OpenNotClosed,
        /// A volume counts as released as soon as the engine was told to release it.
        ReleaseNotAwaited,
        /// After a restart the rental that the owner record names is taken for one that can be deleted.
        RecoveryForgotten,
        /// The sweep deletes volumes whose tag says that they may hold the newest data.
        SweepIgnoresTags,
        /// The sweep deletes volumes that are being created.
        SweepIgnoresCreations,
        /// A sweep knows a stripe by its whole name alone, and not the part of it that a listing shows.
        SweepIgnoresParts,
        /// A stripe of which some members were not made, or are gone, is not listed.
        PartialStripeForgotten,
        /// A stripe counts as tagged when one of its members is.
        PartlyTaggedIsTagged,
        /// A stripe counts as attached when one of its members is.
        PartlyAttachedIsAttached,
        /// A volume is deleted although its tag names an attachment that this daemon never made.
        CopiesIgnored,
        /// That the user has discarded what is on a volume is not written down.
        DiscardForgotten,
        /// Before a daemon runs the device is mapped straight whatever the owner record says.
        StraightAtBoot,
        /// A device that was mapped straight is served although a caching volume has its newest data.
        StraightAccepted,
        /// A caching volume is adopted while the device is mapped straight.
        AdoptedUnserved,
        /// The device is mapped straight while the engine is needed in the path.
        StraightTooEarly,
        /// What became of the engine while requests in flight were awaited is not looked at.
        NoSecondLook,
        /// The device stays mapped to the daemon after a boost.
        ServedForEver,
        /// A switch that failed is not tried again.
        SwitchNotRepeated,
        /// A member of an array is written before the record says that it counts.
        MemberNotPersisted,
        /// A replaced member of an array is deleted before the record names the new one.
        RetiredBeforeRecorded,
        /// An array is served by a member that was replaced, because the new one is out of reach.
        OldestServes,
        /// A volume of a read cache is written before the record says so.
        WrittenBeforeRecorded,
        /// A volume of a read cache that failed is not deleted.
        FailedMemberForgotten,
        /// A volume that the provider could not make is attached.
        FailedIsCreated,
        /// A volume that the provider could not make is forgotten, and not deleted.
        FailedForgotten,
        /// A deletion for which the provider has had too many requests is taken for done.
        ThrottledIsDone,
        /// A volume is gone as soon as the provider says once that it does not know it.
        AbsenceBelieved,
        /// A volume counts as deleted as soon as the provider deletes it, which may fail.
        DeletingIsDeleted,
        /// A deletion that finds no volume is taken for one that was accepted.
        IdentityIsDeleted,
        /// Volumes of an account are deleted although a machine has them attached.
        ReaperIgnoresAttachments,
        /// Volumes of an account are deleted although the machine that rented them exists.
        ReaperIgnoresMachines,
        /// Volumes of an account are deleted although their tags say that they may hold the newest data.
        ReaperIgnoresTags,
        /// Volumes of an account are deleted although they are so young that a boost may be about to use them.
        ReaperIgnoresAge,
    }
}
