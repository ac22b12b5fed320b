//! Bugs on purpose, to see that tests find them: compiled in by the feature `planted-bugs` only, which nothing but those tests may switch on,
//! and even then asleep until one of them wakes one.

/// Of who is let in.
pub mod admission {
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
}

/// Of what a writer keeps of what is not committed.
pub mod writers {
    surgetank_model::plant_bugs! {
        /// A bug that can be planted.
        pub enum Bug {
            /// A chunk is dropped before all its benefactors have acknowledged it.
            DroppedBeforeStored,
            /// A chunk of which only a part was written is dropped, and counts as one that was written as a whole.
            PartDropped,
            /// A chunk that was dropped is as it was before it was written over.
            OlderWritingRead,
            /// A chunk that is not full is dropped, and read as one that is.
            LengthForgotten,
            /// A chunk that was cut off is as long as it was.
            CutForgotten,
            /// Nothing is dropped, however much is kept.
            NothingDropped,
            /// What is too much to be kept and cannot be dropped is not committed.
            KeptIsNotCommitted,
            /// What lies at the only benefactor, which may begin anew with what is on its SSD, is dropped.
            DroppedWithOneSsd,
            /// A group of which nothing was committed with the rest is looked for nowhere.
            LayoutForgotten,
            /// Benefactors promise the room that others may need for what they have and nobody has committed.
            RoomUncounted,
            /// Benefactors count the chunks of all mounts as those of one.
            MountsAsOne,
            /// The writing of a benefactor that others replace is withdrawn before they have the chunk.
            ReplacedWithdrawn,
            /// What was dropped is looked for only where it is to lie from now on.
            ReplacedForgotten,
            /// Copies in the place of those that committed chunks have lost keep their room until the session ends.
            RestoredStays,
            /// Chunks that have all their copies keep them, though nothing of their file can be committed.
            RoomKeptInVain,
            /// A writer that waits for room does not learn what has left the pool.
            LeftUnseen,
            /// What was sealed for a commit that failed is named as long as its session goes on.
            SealedStays,
            /// Any number of bytes waits for a commit.
            UncommittedUnbounded,
            /// Chunks of any number of groups wait for a commit.
            AnyGroupsWait,
        }
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

/// Of buckets as targets, and of what is brought back from a target.
pub mod objects {
    surgetank_model::plant_bugs! {
        /// A bug that can be planted.
        pub enum Bug {
            /// The manifest is put over whatever is there.
            ManifestUnconditional,
            /// Uploads that are of no use are not ended.
            UploadStays,
            /// No record says that an upload is begun.
            RecordOmitted,
            /// Parts are put together in the order in which they came.
            PartsAsTheyCame,
            /// A publication replaces whatever is there.
            ReplacedUnseen,
            /// What is at a name after a publication is taken for the pool's by its length.
            MarkUnread,
            /// What a copy has come to is taken for it by its length.
            CopyUnmarked,
            /// What the pool has lost and a bucket does not say that it has is lost for ever.
            AwayIsLost,
            /// What is in conflict in a directory ends its move, before what has moved is on record.
            ConflictEndsMove,
            /// An object counts as published however long it is, once it was looked at.
            LengthOnceChecked,
            /// A move that is repeated does not know what it has moved.
            MoveForgotten,
            /// An empty file that was put, and of which that was not heard, counts as somebody else's.
            OwnPutUnknown,
            /// Credentials that a store refuses count as a program's lack of rights.
            CredentialsAsRights,
            /// Chunks that are lost are not made of their rows.
            RowUnused,
            /// What is brought back is laid upon what others have committed meanwhile.
            BroughtUponOthers,
        }
    }
}
