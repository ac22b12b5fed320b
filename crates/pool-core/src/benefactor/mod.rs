//! What a benefactor decides about the memory that it lends.

pub mod buffers;

pub use buffers::{Buffers, Piece};
