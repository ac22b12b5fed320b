//! Members of rows of which nobody has the bytes: whoever needs one makes it of the others.

use bytes::Bytes;
use surgetank_pool_core::parity::{Gather, Parity};
use tokio::task::JoinSet;

use crate::chunks::{Lost, TableOf};

/// Why there is no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHad {
    /// It may be had at a later time.
    Now,
    /// Whoever was asked has none, and will have none.
    Ever,
}

/// A chunk with the bytes that were written, from members of its row. `fetch`: a member from its source. Of those that nobody has the manager knows
/// whether somebody may have them at a later time.
pub(crate) async fn make<F: Future<Output = Result<Bytes, NotHad>> + Send + 'static>(
    (of, parity): (TableOf, Parity),
    lost: Lost,
    fetch: impl Fn(u32, u16) -> F,
) -> Result<Vec<u8>, NotHad> {
    let row = lost.row.iter().map(|(chunk, entry, _)| (*chunk, *entry));
    let mut gather = Gather::<Bytes>::new(parity, (lost.chunk, lost.entry), row);
    let (mut coming, mut why) = (JoinSet::new(), NotHad::Ever);
    loop {
        for chunk in gather.more() {
            let Some((.., source)) = lost.row.iter().find(|(other, ..)| *other == chunk) else { continue };
            let fetched = fetch(chunk, *source);
            coming.spawn(async move { (chunk, fetched.await) });
        }
        match coming.join_next().await {
            Some(Ok((chunk, fetched))) => {
                if fetched == Err(NotHad::Now) {
                    why = NotHad::Now;
                }
                gather.got(chunk, fetched.ok());
            }
            Some(Err(_)) => return Err(NotHad::Now),
            None => break,
        }
    }
    // The code takes a while for a chunk, during which others are to be answered.
    let made = tokio::task::spawn_blocking(move || gather.finish()).await.map_err(|_| NotHad::Now)?;
    made.map_err(|error| {
        tracing::warn!("chunk {} of {of:?} is not made: {error}", lost.chunk);
        why
    })
}
