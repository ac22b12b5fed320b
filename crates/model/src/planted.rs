//! How crates plant bugs on purpose, to see that their tests find them.

/// Gives a crate that has a feature `planted-bugs` the type of its bugs, with the list of `ALL` and the one that is `named` so, and the functions `plant`,
/// which wakes one of them, or none, for this thread, and `planted`, which says whether one is awake. Without the feature there
/// is no `plant`, and none is.
#[macro_export]
macro_rules! plant_bugs {
    ($(#[$of_all:meta])* pub enum $bug:ident { $($(#[$of_one:meta])* $name:ident,)* }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $bug {
            $($(#[$of_one])* $name,)*
        }

        impl $bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The one of this name, as it stands in the source.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
            }
        }

        #[cfg(feature = "planted-bugs")]
        thread_local! {
            static AWAKE: std::cell::Cell<Option<$bug>> = const { std::cell::Cell::new(None) };
        }

        /// Wakes one bug, or none, for all that runs in this thread.
        #[cfg(feature = "planted-bugs")]
        pub fn plant(bug: Option<$bug>) {
            AWAKE.set(bug);
        }

        /// How a run fails, or panics, with a bug awake; `None`: it does neither.
        #[cfg(feature = "planted-bugs")]
        pub fn shows(bug: $bug, run: impl FnOnce() -> Result<(), String>) -> Option<String> {
            plant(Some(bug));
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run().err()));
            plant(None);
            failed.unwrap_or_else(|_| Some("an assertion fails".to_owned()))
        }

        /// Whether a bug is awake.
        #[cfg(feature = "planted-bugs")]
        pub(crate) fn planted(bug: $bug) -> bool {
            AWAKE.get() == Some(bug)
        }

        /// Never: the feature is off.
        #[cfg(not(feature = "planted-bugs"))]
        pub(crate) const fn planted(_: $bug) -> bool {
            false
        }
    };
}
