//! What a staging pool decides, sans-IO.
//!
//! Benefactors lend memory and SSD; managers plan and keep the names; clients write chunks straight to benefactors; staged files
//! are drained to a target (seed 002). Each part here is fed events with the time and polled for what to do, so that the pool's
//! processes and a simulator of thousands of nodes drive the same code.
//!
//! - [`id`](mod@id): names;
//! - [`membership`]: which benefactors are alive, and in which life;
//! - [`placement`]: where a group of chunks goes;
//! - [`parity`]: rows of chunks of which some may be lost;
//! - [`benefactor`]: memory in three buffers; which chunks are held, and for whom; scrubbing;
//! - [`locks`]: locked bytes;
//! - [`meta`]: names, files and groups as keys of a store with transactions, and every operation on them;
//! - [`client`]: what goes to whom while a file is written, and when it counts;
//! - [`leaving`]: benefactors that operators take out;
//! - [`quota`]: what users have, and may have;
//! - [`repair`]: copies that are missing, and what a benefactor that returns has;
//! - [`draining`]: which file goes to which target next, and which may leave the pool;
//! - [`publishing`]: in which order the target sees what was committed;
//! - [`runs`]: sets of numbers of which many follow each other;
//! - [`written`]: which bytes of a chunk a session lays upon what others have committed.

pub mod benefactor;
pub mod client;
pub mod draining;
pub mod id;
pub mod leaving;
pub mod locks;
pub mod membership;
pub mod meta;
pub mod parity;
pub mod placement;
pub mod planted;
pub mod publishing;
pub mod quota;
pub mod repair;
pub mod runs;
pub mod written;
