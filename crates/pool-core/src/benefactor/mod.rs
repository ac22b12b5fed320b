//! What a benefactor decides: where chunks lie in the memory and on the SSD that it lends, and how long it holds them.

pub mod buffers;
pub mod holdings;
pub mod segments;

pub use buffers::{Buffers, Piece};
pub use holdings::Holdings;
pub use segments::Segments;
