//! What a benefactor decides: where chunks lie in the memory and on the SSD that it lends, how long it holds them, and when it reads them
//! again to find damage.

pub mod buffers;
pub mod holdings;
pub mod scrub;
pub mod segments;

pub use buffers::{Buffers, Piece};
pub use holdings::Holdings;
pub use scrub::Scrub;
pub use segments::Segments;
