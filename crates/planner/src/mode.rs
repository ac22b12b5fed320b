//! The three ways to run an application that every answer compares.

use serde::Serialize;

/// On which volumes an application runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// On the backing volume alone.
    StaticSlow,
    /// On a volume of the backing volume's size and the caching volume's speed.
    StaticFast,
    /// On the backing volume, with boosts.
    Elastic,
}

impl Mode {
    /// All, in the order of reports.
    pub const ALL: [Self; 3] = [Self::StaticSlow, Self::StaticFast, Self::Elastic];

    /// As JSON and CSV name it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::StaticSlow => "static_slow",
            Self::StaticFast => "static_fast",
            Self::Elastic => "elastic",
        }
    }

    /// As people read it, in tables and paths.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaticSlow => "static-slow",
            Self::StaticFast => "static-fast",
            Self::Elastic => "elastic",
        }
    }
}
