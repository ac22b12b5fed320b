//! What a client decides while it writes a file: what goes to whom, what counts, and what is committed.

mod latency;
pub mod writer;

pub use self::writer::{Answer, Config, Effect, PutAnswer, Source, Why, Writer};
