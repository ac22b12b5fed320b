//! What a benefactor decides: where chunks lie in the memory and on the SSD that it lends, how long it holds them, when it moves them to
//! make room, and when it reads them again to find damage.

pub mod buffers;
pub mod compaction;
pub mod holdings;
pub mod recovery;
pub mod scrub;
pub mod segments;
pub mod sharing;

pub use buffers::{Buffers, Piece};
pub use compaction::Compaction;
pub use holdings::Holdings;
pub use scrub::Scrub;
pub use segments::Segments;
