//! Names of what the pool consists of.

use std::fmt;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    )*};
}

numbers! {
    /// A benefactor, for as long as its record is in the pool.
    BenefactorId(u32);
    /// One life of a benefactor's process. What a former life acknowledged from memory is gone.
    Incarnation(u64);
    /// Hosts that fail together (a host, a rack): copies lie in different ones.
    Domain(u32);
    /// One life of a mount.
    SessionId(u64);
    /// A mount: a name in the pool, a target, a policy. Its sessions come and go.
    MountId(u32);
    /// A file, directory or symbolic link that is staged.
    Inode(u64);
    /// Which commit of an inode's content; 0: nothing was committed.
    Version(u64);
    /// When the store changed: it grows with every transaction.
    Revision(u64);
}

impl Version {
    /// Nothing was committed.
    pub const NONE: Self = Self(0);

    /// The version that the next commit makes.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
