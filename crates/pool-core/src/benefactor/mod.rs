//! What a benefactor decides: where chunks lie in the memory that it lends, and how long it holds them.

pub mod buffers;
pub mod holdings;

pub use buffers::{Buffers, Piece};
pub use holdings::Holdings;
