//! What is shown of a rotation.

use serde::Serialize;

use super::config::Way;

/// Of an array.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// How it is rotated.
    pub way: Way,
    /// Members replaced since the start.
    pub rotations: u64,
    /// Why a replacement that is due waits; for people.
    pub waiting: Option<String>,
    /// In their order.
    pub slots: Vec<SlotStatus>,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// It has one member.
    Active,
    /// A new member is asked for.
    Creating,
    /// It is copied to.
    Copying,
    /// The old one is being deleted.
    Deleting,
}

/// Of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SlotStatus {
    /// Where it is.
    pub state: SlotState,
    /// The share of credits that its member has left, of the emptiest bucket; `None`: it has none.
    pub credits_ratio: Option<f64>,
    /// When they end at the rate of late; `None`: never.
    pub empty_in_s: Option<f64>,
    /// How much of what it holds is copied.
    pub copied_ratio: Option<f64>,
}
